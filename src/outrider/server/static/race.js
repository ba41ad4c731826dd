// The race: one prompt, plainly and speculatively, one after the other, and whether the tokens are the same.

import { stream } from "./api.js";
import { seconds, times } from "./live.js";
import { fields, key, speculative, valid } from "./settings.js";
import { Answer } from "./tokens.js";

const byId = (name) => document.getElementById(name);
const LANES = ["plain", "speculative"];

// How two sequences of token ids compare: {identical, at} with the first position that differs.
export function compare(a, b) {
  const shorter = Math.min(a.length, b.length);
  let at = 0;
  while (at < shorter && a[at] === b[at]) at += 1;
  const identical = a.length > 0 && at === a.length && at === b.length;
  return { identical, at: identical ? null : at };
}

export class Race {
  constructor(live, onFailure, onBusy) {
    this.live = live;
    this.onFailure = onFailure;
    this.onBusy = onBusy;
    this.abort = null;
    this.races = 0;
    byId("race").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("race-stop").addEventListener("click", () => this.stop());
  }

  stop() {
    this.abort?.abort();
  }

  async run() {
    const prompt = byId("race-prompt").value;
    if (this.abort || byId("race-start").disabled || !prompt.trim() || !valid()) return;
    this.abort = new AbortController();
    this.onFailure(null);
    this.onBusy(true);
    byId("race-stop").disabled = false;
    verdict("", "Racing…");
    // Whoever runs second has a warmer machine, so they take turns at it.
    const order = this.races % 2 ? [...LANES].reverse() : LANES;
    this.races += 1;
    this.elapsed = { plain: 0, speculative: 0 };
    for (const name of LANES) {
      byId(`${name}-tokens`).replaceChildren();
      clock(name, this.elapsed);
      byId(`${name}-note`).textContent = name === order[0] ? "runs first" : "waits for the other to end";
    }
    const base = fields();
    // Without a seed in the settings, one for both; and nothing cached for either from before, or by the other.
    base.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
    const salt = `race-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`;
    const found = {};
    try {
      for (const name of order) {
        const body = {
          ...base,
          messages: [{ role: "user", content: prompt }],
          speculative: name === "plain" ? false : speculative() || true,
          cache_salt: `${salt}-${name}`,
        };
        found[name] = await this.#lane(name, body);
      }
      result(found.plain, found.speculative, base.seed);
    } catch (error) {
      if (error.name === "AbortError") {
        verdict("", "Stopped: nothing was compared.");
      } else {
        verdict("", "The race did not end: nothing was compared.");
        this.onFailure(error);
      }
      for (const name of LANES) if (!found[name]) byId(`${name}-note`).textContent = "did not end";
    }
    this.abort = null;
    byId("race-stop").disabled = true;
    this.onBusy(false);
  }

  // One run, alone on the machine as far as this page goes.
  async #lane(name, body) {
    const answer = new Answer(byId(`${name}-tokens`));
    byId(`${name}-note`).textContent = "running";
    const began = performance.now();
    const tick = () => {
      this.elapsed[name] = (performance.now() - began) / 1000;
      clock(name, this.elapsed);
    };
    const timer = setInterval(tick, 100);
    this.live.begin(answer);
    try {
      for await (const chunk of stream("v1/chat/completions", body, key(), this.abort.signal)) {
        answer.push(chunk);
        this.live.tick(answer);
        answer.element.scrollTop = answer.element.scrollHeight;
      }
    } finally {
      clearInterval(timer);
      tick();
      this.live.end(answer);
    }
    const rate = answer.metrics?.decode_tokens_per_s;
    const speed = rate ? `, ${rate.toFixed(1)} per second` : "";
    byId(`${name}-note`).textContent = `${answer.ids.length} tokens${speed}`;
    return answer;
  }
}

function clock(name, elapsed) {
  const scale = Math.max(2, elapsed.plain, elapsed.speculative);
  for (const lane of LANES) byId(`${lane}-bar`).style.width = `${(100 * elapsed[lane]) / scale}%`;
  byId(`${name}-time`).textContent = seconds(elapsed[name]);
}

function verdict(kind, text, more = "") {
  byId("verdict").dataset.kind = kind;
  byId("verdict-text").textContent = text;
  byId("verdict-more").textContent = more;
}

function result(plain, fast, seed) {
  const { identical, at } = compare(plain.ids, fast.ids);
  const parts = [];
  if (identical) parts.push(`all ${plain.ids.length} tokens are the same`);
  else parts.push(`they part at token ${at + 1}: ${shown(plain, at)} plainly, ${shown(fast, at)} speculatively`);
  const [slow, quick] = [plain.metrics?.tpot_ms, fast.metrics?.tpot_ms];
  if (identical && slow && quick) {
    const ratio = slow / quick;
    parts.push(
      `speculation was ${times(ratio)} as fast (${slow.toFixed(1)} against ${quick.toFixed(1)} ms a token, prompt apart)`,
    );
  }
  parts.push(`seed ${seed}`);
  if (identical && !Object.keys(fast.counts).some((source) => source !== "target")) {
    parts.push("no guess was accepted: the controller left speculation off, or every guess was wrong");
  }
  verdict(identical ? "yes" : "no", `identical: ${identical ? "yes" : "no"}`, `${parts.join("; ")}.`);
}

const shown = ({ ids, texts }, at) => (at < ids.length ? `${ids[at]} ${JSON.stringify(texts[at])}` : "the end");
