// The list of conversations: open, rename, export, import, delete, and the bar that takes things back.

import { exportJson, exportMarkdown, fileName, newConversation, readImport, titleOf } from "./conversation.js";
import { button, byId, download, make, say } from "./dom.js";
import * as settings from "./settings.js";
import { Store, browserStorage } from "./store.js";

const CURRENT = "outrider.conversation"; // in this tab
const MAX_FILE = 20_000_000; // bytes
const TITLE_CHARS = 120;

export class List {
  // onOpen: called with a conversation to show; onFailure: told what went wrong; onShow: closes the list where it
  // covers the page.
  constructor({ onOpen, onFailure, onShow }) {
    Object.assign(this, { onOpen, onFailure, onShow });
    this.store = new Store(browserStorage("localStorage"));
    this.tab = browserStorage("sessionStorage");
    this.open = null;
    this.drawn = "";
    byId("kept").textContent = this.store.storage
      ? "Kept in this browser only."
      : "This browser keeps nothing: conversations last until the page is closed.";
    byId("clear").addEventListener("click", () => {
      this.begin();
      say("New conversation.");
    });
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.#import(event.target));
    byId("export-all").addEventListener("click", () => {
      download("conversations.json", "application/json", exportJson(this.store.list()));
    });
    byId("delete-all").addEventListener("click", () => this.#deleteAll());
    byId("export-json").addEventListener("click", () => {
      download(fileName(this.open, "json"), "application/json", exportJson([this.open]));
      byId("export-menu").hidePopover();
    });
    byId("export-markdown").addEventListener("click", () => {
      download(fileName(this.open, "md"), "text/markdown", exportMarkdown(this.open));
      byId("export-menu").hidePopover();
    });
    byId("delete").addEventListener("click", () => this.#delete());
    byId("title").maxLength = TITLE_CHARS;
    byId("title").addEventListener("change", () => this.#rename(byId("title").value.trim()));
    byId("title").addEventListener("keydown", (event) => {
      if (event.key === "Enter") byId("prompt").focus();
    });
    byId("undo").addEventListener("click", () => {
      const back = this.back;
      this.tell("");
      back?.();
    });
    addEventListener("storage", () => {
      this.store.load();
      this.draw();
    });
  }

  // Show the conversation of this tab, or a new one.
  start() {
    const found = this.store.get(this.tab?.getItem(CURRENT) ?? "");
    if (found) this.choose(found);
    else this.begin(false);
  }

  // A new conversation, with the settings used last. One that is open and empty will do.
  begin(focus = true) {
    if (this.open && !this.open.messages.length && !this.store.get(this.open.id)) this.onOpen(this.open);
    else this.choose(newConversation(settings.last()));
    this.onShow();
    if (focus) byId("prompt").focus();
  }

  choose(conversation) {
    this.open = conversation;
    try {
      this.tab?.setItem(CURRENT, conversation.id);
    } catch {
      // then a reload begins a new one
    }
    this.onOpen(conversation);
    this.draw();
  }

  // Keep a conversation, after a change. One without messages is not worth it.
  save(conversation) {
    if (conversation.id === this.open?.id) this.open = conversation;
    if (!conversation.messages.length) {
      this.store.remove(conversation.id);
      return this.draw();
    }
    const { saved, removed } = this.store.save(conversation);
    if (removed.length) {
      this.tell(`To make room, this browser removed the oldest: ${removed.map((title) => `“${title}”`).join(", ")}.`);
    } else if (!saved && this.store.storage) {
      this.tell("This conversation is too long for this browser to keep. Export it before you leave.");
    }
    return this.draw();
  }

  // Say something above the message box, and offer to take it back.
  tell(text, back = null) {
    this.back = back;
    byId("notice").hidden = !text;
    byId("notice-text").textContent = text;
    byId("undo").hidden = !back;
  }

  draw() {
    const found = this.store.list();
    const title = titleOf(this.open);
    if (document.activeElement !== byId("title")) byId("title").value = title;
    const entries = found.map((conversation) => [conversation.id, titleOf(conversation), conversation.id === this.open.id]);
    const key = JSON.stringify(entries);
    if (key === this.drawn) return;
    this.drawn = key;
    const at = [...byId("conversations").querySelectorAll("button")].indexOf(document.activeElement);
    byId("conversations").replaceChildren(
      ...found.map((conversation, i) => {
        const [, name, isOpen] = entries[i];
        const made = button(name, () => {
          if (conversation.id !== this.open.id) this.choose(this.store.get(conversation.id) ?? conversation);
          this.onShow();
        }, { title: `${name}\n${new Date(conversation.updated).toLocaleString()}` });
        if (isOpen) made.setAttribute("aria-current", "true");
        return make("li", {}, made);
      }),
    );
    if (at >= 0) byId("conversations").querySelectorAll("button")[at]?.focus();
    byId("export-all").disabled = byId("delete-all").disabled = !found.length;
  }

  #rename(title) {
    Object.assign(this.open, { title: title.slice(0, TITLE_CHARS), named: title !== "" });
    this.save(this.open);
  }

  #delete() {
    const gone = this.open;
    this.forget(gone, true);
    this.store.remove(gone.id);
    this.choose(newConversation(settings.last()));
    byId("prompt").focus();
    if (!gone.messages.length) return;
    this.tell(`Deleted “${titleOf(gone)}”.`, () => {
      this.forget(gone, false);
      this.choose(gone);
      this.save(gone);
    });
  }

  #deleteAll() {
    const gone = this.store.list();
    for (const conversation of gone) {
      this.forget(conversation, true);
      this.store.remove(conversation.id);
    }
    this.choose(newConversation(settings.last()));
    this.onShow();
    this.tell(`Deleted ${gone.length} ${gone.length === 1 ? "conversation" : "conversations"}.`, () => {
      for (const conversation of gone.toReversed()) {
        this.forget(conversation, false);
        this.save(conversation);
      }
    });
  }

  async #import(input) {
    const [file] = input.files;
    input.value = ""; // so that the same file can be chosen again
    if (!file) return;
    try {
      if (file.size > MAX_FILE) throw new Error("The file is larger than 20 MB: export fewer conversations at a time.");
      const found = readImport(await file.text());
      for (const conversation of found.toReversed()) this.save(conversation);
      this.choose(found[0]);
      this.onShow();
      say(`Imported ${found.length} ${found.length === 1 ? "conversation" : "conversations"}.`);
      this.onFailure(null);
    } catch (error) {
      this.onFailure(error);
    }
  }
}
