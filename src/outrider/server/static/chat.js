// The conversation.

import { stream } from "./api.js";
import { fields, key, valid } from "./settings.js";
import { Answer } from "./tokens.js";
import { seconds } from "./live.js";

const byId = (name) => document.getElementById(name);

export class Chat {
  // onFailure: is told what went wrong; onBusy: whether an answer is under way.
  constructor(live, onFailure, onBusy) {
    this.live = live;
    this.onFailure = onFailure;
    this.onBusy = onBusy;
    this.messages = [];
    this.abort = null;
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("clear").addEventListener("click", () => this.clear());
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.messages = [];
    this.turn = null; // an answer that still comes belongs nowhere
    byId("log").replaceChildren();
    byId("empty").hidden = false;
    byId("said").textContent = "New conversation.";
    byId("prompt").focus();
  }

  async send() {
    const text = byId("prompt").value;
    if (this.abort || byId("send").disabled || !text.trim() || !valid()) return;
    const turn = (this.turn = {});
    const messages = [...this.messages, { role: "user", content: text }];
    byId("prompt").value = "";
    byId("empty").hidden = true;
    const asked = bubble("user", "You");
    asked.querySelector(".tokens").textContent = text;
    const told = bubble("assistant", "Model");
    const answer = new Answer(told.querySelector(".tokens"));
    byId("log").append(asked, told);
    scroll(true);
    this.abort = new AbortController();
    this.#busy(told, true);
    this.onFailure(null);
    this.live.begin(answer);
    let note = "";
    let failed = null;
    try {
      for await (const chunk of stream("v1/chat/completions", { messages, ...fields() }, key(), this.abort.signal)) {
        const near = scroll();
        answer.push(chunk);
        this.live.tick(answer);
        if (near) scroll(true);
      }
      note = ending(answer);
    } catch (error) {
      if (error.name === "AbortError") note = `Stopped after ${answer.ids.length} tokens.`;
      else failed = error;
    }
    this.abort = null;
    this.live.end(answer);
    this.#busy(told, false);
    if (this.turn !== turn) return;
    if (failed) {
      note = failed.message;
      this.onFailure(failed);
    }
    if (answer.text || !failed) {
      this.messages = [...messages, { role: "assistant", content: answer.text }];
      told.querySelector(".note").textContent = note;
    } else {
      // Nothing came of it: let the question be asked again.
      asked.remove();
      told.remove();
      byId("empty").hidden = byId("log").childElementCount > 0;
      if (!byId("prompt").value) byId("prompt").value = text;
    }
    byId("said").textContent = note;
  }

  #busy(told, is) {
    told.setAttribute("aria-busy", String(is));
    told.classList.toggle("busy", is);
    byId("stop").disabled = !is;
    if (!is && document.activeElement === document.body) byId("prompt").focus();
    this.onBusy(is);
  }
}

function ending({ ids, reason, metrics, seed }) {
  const parts = [`${ids.length} tokens`];
  if (metrics?.decode_tokens_per_s) parts.push(`${metrics.decode_tokens_per_s.toFixed(1)} per second`);
  if (metrics?.ttft_ms != null) parts.push(`first after ${seconds(metrics.ttft_ms / 1000)}`);
  if (Number.isSafeInteger(seed)) parts.push(`seed ${seed}`);
  if (reason === "length") parts.push("ended by the limit of tokens");
  return `${parts.join(", ")}.`;
}

// The box of one message: who, text, and a note below.
function bubble(kind, who) {
  const box = document.createElement("article");
  const name = document.createElement("h3");
  const text = document.createElement("div");
  const note = document.createElement("p");
  box.className = `message ${kind}`;
  name.textContent = who;
  text.className = "tokens";
  if (kind === "assistant") {
    text.tabIndex = 0;
    text.role = "group";
    text.ariaLabel = "Answer; left and right arrow keys go through its tokens";
  }
  note.className = "note";
  box.append(name, text, note);
  return box;
}

// Whether the log is scrolled to its end; goes there if told to.
function scroll(go = false) {
  const log = byId("log");
  if (go) log.scrollTop = log.scrollHeight;
  return log.scrollHeight - log.scrollTop - log.clientHeight < 40;
}
