// Conversations in the browser's storage, each under a key of its own. They never leave the browser.

import { cleanConversation, titleOf } from "./conversation.js";

const PREFIX = "outrider.conversation.";
const MOST = 200; // conversations
const CHARS = 4_000_000; // of all together; browsers allow about five million for all of a page's data

// The browser's storage, or null where it is forbidden.
export function browserStorage(name) {
  try {
    const found = globalThis[name];
    found.getItem("outrider");
    return found;
  } catch {
    return null;
  }
}

export class Store {
  // storage: of the browser, or null: then conversations last until the page is closed.
  constructor(storage, most = MOST, chars = CHARS) {
    this.storage = storage;
    this.most = most;
    this.chars = chars;
    this.kept = new Map(); // id → conversation
    this.sizes = new Map(); // id → characters in the storage
    this.load();
  }

  // Read everything again, for another tab may have changed it. What cannot be read is left out.
  load() {
    if (!this.storage) return;
    const before = this.kept;
    this.kept = new Map([...before].filter(([id]) => !this.sizes.has(id))); // those that the storage does not have
    this.sizes.clear();
    const keys = Array.from({ length: this.storage.length }, (_, i) => this.storage.key(i));
    for (const key of keys.filter((name) => name?.startsWith(PREFIX))) {
      const text = this.storage.getItem(key) ?? "";
      const id = key.slice(PREFIX.length);
      try {
        const found = cleanConversation(JSON.parse(text));
        // The object in use stays the one in use unless it was changed elsewhere.
        const mine = before.get(id);
        if (found.id === id) this.kept.set(id, mine && mine.updated >= found.updated ? mine : found);
        this.sizes.set(id, text.length);
      } catch {
        this.sizes.set(id, text.length);
      }
    }
  }

  // All conversations, the latest first.
  list() {
    return [...this.kept.values()].sort((a, b) => b.updated - a.updated);
  }

  get(id) {
    return this.kept.get(id) ?? null;
  }

  // Keep a conversation. Returns {saved, removed}: whether it is in the storage now, and the titles of the oldest
  // ones that had to make room.
  save(conversation) {
    const removed = [];
    this.kept.set(conversation.id, conversation);
    if (!this.storage) return { saved: false, removed };
    const text = JSON.stringify(conversation);
    if (text.length > this.chars) return { saved: false, removed };
    for (;;) {
      const others = this.list().filter(({ id }) => id !== conversation.id && this.sizes.has(id));
      const size = text.length + others.reduce((sum, { id }) => sum + this.sizes.get(id), 0);
      if (size <= this.chars && others.length < this.most && this.#write(conversation.id, text)) {
        return { saved: true, removed };
      }
      const oldest = others.at(-1);
      if (!oldest) return { saved: false, removed };
      removed.push(titleOf(oldest));
      this.remove(oldest.id);
    }
  }

  remove(id) {
    this.kept.delete(id);
    this.sizes.delete(id);
    this.storage?.removeItem(PREFIX + id);
  }

  #write(id, text) {
    try {
      this.storage.setItem(PREFIX + id, text);
    } catch {
      return false; // no room is left
    }
    this.sizes.set(id, text.length);
    return true;
  }
}
