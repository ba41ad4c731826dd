// The conversation that is open: sending, editing, regenerating, continuing.

import { stream } from "./api.js";
import { canContinue, newConversation, requestMessages } from "./conversation.js";
import { byId, say } from "./dom.js";
import { seconds } from "./live.js";
import { MessageView } from "./message.js";
import * as settings from "./settings.js";
import { Answer, newTrace } from "./tokens.js";

const SAVE_EVERY = 2000; // ms, while an answer comes
const SPOKEN = 400; // characters of an answer that a screen reader is given at its end

export class Chat {
  // onFailure: told what went wrong; onBusy: whether an answer is under way; onSave: to keep a conversation;
  // onUndo: offered a way back, as a text and a function.
  constructor({ live, onFailure, onBusy, onSave, onUndo }) {
    Object.assign(this, { live, onFailure, onBusy, onSave, onUndo });
    this.conversation = newConversation();
    this.views = [];
    this.name = "Model";
    this.marks = false;
    this.abort = null;
    this.editing = false;
    this.forgotten = new WeakSet(); // conversations that were deleted
    const prompt = byId("prompt");
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    prompt.addEventListener("keydown", (event) => {
      const touch = matchMedia("(pointer: coarse)").matches; // there, Enter begins a line
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && !touch) {
        event.preventDefault();
        this.send();
      } else if (event.key === "ArrowUp" && !prompt.value) {
        const last = this.views.findLast(({ message }) => message.role === "user");
        if (last && this.#edit(last)) event.preventDefault();
      }
    });
    byId("stop").addEventListener("click", () => this.stop());
    addEventListener("pagehide", () => this.abort && this.#save());
  }

  stop() {
    this.abort?.abort();
  }

  // Show a conversation. An answer that is under way ends.
  open(conversation) {
    this.stop();
    this.conversation = conversation;
    this.editing = false;
    settings.put(conversation.settings);
    this.views = conversation.messages.map((message) => this.#view(message));
    byId("log").replaceChildren(...this.views.map(({ element }) => element));
    this.#refresh();
    scroll(true);
  }

  // Show answers token by token, or rendered.
  mark(is) {
    this.marks = is;
    const near = scroll();
    for (const view of this.views) view.show(is);
    if (near) scroll(true);
  }

  // The settings were changed in the form.
  settled() {
    this.conversation.settings = settings.values();
    this.#save();
    this.#refresh();
  }

  send() {
    const text = byId("prompt").value;
    if (this.#refuses() || !text.trim()) return;
    byId("prompt").value = "";
    const asked = this.#append({ role: "user", content: text });
    this.#answer(() => {
      // Nothing came of it: let the question be asked again.
      this.#drop(asked);
      if (!byId("prompt").value) byId("prompt").value = text;
    });
  }

  // Whether nothing may be sent now. Shows a setting that is out of range.
  #refuses() {
    return Boolean(this.abort || byId("send").disabled || !settings.valid());
  }

  #view(message) {
    const view = new MessageView(message, this.name, {
      edit: (it) => this.#edit(it),
      regenerate: (it) => this.#regenerate(it),
      goOn: () => this.#continue(),
      remove: (it) => this.#remove(it),
    });
    view.show(this.marks);
    return view;
  }

  #append(message) {
    const view = this.#view(message);
    this.conversation.messages.push(message);
    this.#touch();
    this.views.push(view);
    byId("log").append(view.element);
    return view;
  }

  #drop(view) {
    const at = this.views.indexOf(view);
    if (at < 0) return;
    for (const { element } of this.views.splice(at)) element.remove();
    this.conversation.messages.length = at;
    this.#touch();
    this.#refresh();
    this.#save();
  }

  #edit(view) {
    if (this.abort || this.editing) return false;
    this.editing = true;
    const isQuestion = view.message.role === "user";
    view.edit(
      isQuestion ? "Send" : "Save",
      (text) => (isQuestion ? this.#ask(view, text) : this.#replace(view, text)),
      () => {
        this.editing = false;
        byId("prompt").focus();
      },
      () => !isQuestion || !this.#refuses(),
    );
    return true;
  }

  // Send a question again in other words; what came after it is dropped.
  #ask(view, text) {
    this.#undoable("Sent again from here; what followed was removed.");
    this.#drop(view);
    this.#append({ role: "user", content: text });
    this.#answer();
  }

  // Put another text in the place of an answer's.
  #replace(view, text) {
    const { role, model } = view.message;
    const message = { role, content: text, model, reason: "edited", note: "Edited." };
    const at = this.views.indexOf(view);
    const made = this.#view(message);
    this.conversation.messages[at] = message;
    this.#touch();
    this.views[at] = made;
    view.element.replaceWith(made.element);
    this.#refresh();
    this.#save();
  }

  #remove(view) {
    if (this.abort) return;
    this.#undoable("Deleted.");
    this.#drop(view);
    byId("prompt").focus();
  }

  #regenerate(view) {
    if (this.#refuses()) return;
    const at = this.views.indexOf(view);
    if (view.isAnswer) {
      this.#undoable("Regenerated from here.");
      this.#drop(view);
    } else if (at < this.views.length - 1) return;
    this.#answer();
  }

  // Offer to put the conversation back as it is now.
  #undoable(text) {
    const before = structuredClone(this.conversation);
    this.onUndo(text, () => {
      this.open(before);
      this.#save();
    });
  }

  // Let the model answer the last message. onNothing: called when not even a token came, because of a failure.
  async #answer(onNothing = () => {}) {
    const message = { role: "assistant", content: "", model: this.name, trace: newTrace() };
    const body = { messages: requestMessages(this.conversation), ...settings.fields() };
    const view = this.#append(message);
    const nothing = await this.#generate(view, body);
    if (nothing === null) return;
    this.#drop(view);
    if (nothing === "failed") onNothing();
  }

  async #continue() {
    if (this.#refuses() || !canContinue(this.conversation)) return;
    const view = this.views.at(-1);
    const { message } = view;
    message.trace ??= newTrace(message.content);
    const body = {
      messages: requestMessages(this.conversation),
      ...settings.fields(),
      continue_final_message: true,
      add_generation_prompt: false,
    };
    await this.#generate(view, body);
  }

  // Stream an answer into a message, after the text that it has. Returns null, or when the message is still empty:
  // "stopped" or "failed".
  async #generate(view, body) {
    const { message } = view;
    const { conversation } = this;
    const before = beginning(message);
    const answer = new Answer(view.tokens, message.trace);
    this.abort = new AbortController();
    this.#busy(view, true);
    this.onFailure(null);
    this.live.begin(answer);
    scroll(true);
    say("The model is answering.");
    const painter = new Painter(() => {
      const near = scroll();
      if (!this.marks) view.renderText(message.content, message.reasoning, message.tool_calls);
      if (near) scroll(true);
    });
    let saved = performance.now();
    let failed = null;
    delete message.reason;
    delete message.note;
    try {
      for await (const chunk of stream("v1/chat/completions", body, settings.key(), this.abort.signal)) {
        const near = scroll();
        answer.push(chunk);
        take(message, answer, before);
        this.live.tick(answer);
        if (near) scroll(true);
        painter.ask();
        if (performance.now() - saved > SAVE_EVERY) {
          saved = performance.now();
          this.#save(conversation);
        }
      }
      message.reason = answer.reason ?? "stop";
      message.note = ending(answer);
    } catch (error) {
      message.reason = error.name === "AbortError" ? "stopped" : "failed";
      message.note = message.reason === "stopped" ? `Stopped after ${answer.ids.length} tokens.` : error.message;
      if (message.reason === "failed") failed = error;
    }
    painter.end();
    this.abort = null;
    this.live.end(answer);
    const here = this.conversation === conversation;
    const ended = message.reason !== "failed" && message.reason !== "stopped";
    const empty = !ended && !message.content && !message.reasoning && !message.tool_calls;
    const near = scroll();
    view.note.textContent = message.note;
    view.show(this.marks);
    this.#busy(view, false);
    if (failed && here) this.onFailure(failed);
    if (here) this.#refresh();
    if (here && near) scroll(true);
    // Of two objects with the same id, after an undo, the open one counts.
    if (!empty && (here || this.conversation.id !== conversation.id)) this.#save(conversation);
    if (here) say(ended ? `${spoken(view)} ${message.note}` : message.note);
    return empty && here ? message.reason : null;
  }

  // Have a conversation kept.
  #save(conversation = this.conversation) {
    if (!this.forgotten.has(conversation)) this.onSave(conversation);
  }

  #touch() {
    this.conversation.updated = Date.now();
  }

  // Keep a conversation no more, or again.
  forget(conversation, is = true) {
    if (is) this.forgotten.add(conversation);
    else this.forgotten.delete(conversation);
  }

  // What depends on which message is the last, and on whether an answer is under way.
  #refresh() {
    byId("empty").hidden = this.views.length > 0;
    const goesOn = canContinue(this.conversation);
    for (const view of this.views) {
      const last = view === this.views.at(-1);
      view.act({ last, goesOn: last && goesOn, busy: this.abort !== null });
    }
  }

  #busy(view, is) {
    view.busy(is);
    byId("stop").disabled = !is;
    this.onBusy(is);
    this.#refresh();
    if (!is && document.activeElement === document.body) byId("prompt").focus();
  }
}

// What a message holds before an answer goes on with it.
function beginning({ content, reasoning = "", written = content }) {
  return { content, reasoning, written };
}

// Put what has come into the message.
function take(message, answer, before) {
  message.content = before.content + answer.text;
  if (before.reasoning || answer.reasoning) message.reasoning = before.reasoning + answer.reasoning;
  if (answer.calls.length) message.tool_calls = answer.calls;
  const written = before.written + answer.written;
  if (written === message.content) delete message.written;
  else message.written = written;
}

// Draws at most twenty times a second, and rests after a slow drawing, so that a long answer does not hold the page up.
class Painter {
  constructor(draw) {
    this.draw = draw;
    this.timer = null;
    this.took = 0;
  }

  ask() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      const began = performance.now();
      this.draw();
      this.took = performance.now() - began;
    }, Math.max(50, 5 * this.took));
  }

  end() {
    clearTimeout(this.timer);
  }
}

function ending({ ids, reason, metrics, seed }) {
  const parts = [`${ids.length} tokens`];
  if (metrics?.decode_tokens_per_s) parts.push(`${metrics.decode_tokens_per_s.toFixed(1)} per second`);
  if (metrics?.ttft_ms != null) parts.push(`first after ${seconds(metrics.ttft_ms / 1000)}`);
  if (Number.isSafeInteger(seed)) parts.push(`seed ${seed}`);
  if (reason === "length") parts.push("ended by the limit of tokens");
  if (reason === "tool_calls") parts.push("ended with a tool call");
  return `${parts.join(", ")}.`;
}

// The beginning of an answer, for a screen reader.
function spoken({ message }) {
  const text = message.content.trim();
  return text.length > SPOKEN ? `${text.slice(0, SPOKEN)}… The answer goes on.` : text;
}

// Whether the log is scrolled to its end; goes there if told to.
function scroll(go = false) {
  const log = byId("log");
  if (go) log.scrollTop = log.scrollHeight;
  return log.scrollHeight - log.scrollTop - log.clientHeight < 40;
}
