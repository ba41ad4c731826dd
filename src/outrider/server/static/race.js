// The race: one prompt, plainly and speculatively, one after the other, and whether the tokens are the same.

import { stream } from "./api.js";
import { byId } from "./dom.js";
import { seconds, times } from "./live.js";
import { fields, key, valid, values } from "./settings.js";
import { Answer } from "./tokens.js";

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
    this.turns = 0;
    byId("race-form").addEventListener("submit", (event) => {
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
    verdict("", "Running…");
    const rounds = Number(byId("rounds").value);
    const runs = { plain: [], speculative: [] };
    this.elapsed = { plain: 0, speculative: 0 };
    for (const name of LANES) {
      byId(`${name}-tokens`).replaceChildren();
      byId(`${name}-note`).textContent = "waits for its turn";
      clock(name, this.elapsed);
    }
    const base = fields();
    const { system } = values();
    const messages = [{ role: "user", content: prompt }];
    if (system.trim()) messages.unshift({ role: "system", content: system });
    base.seed ??= crypto.getRandomValues(new Uint32Array(1))[0]; // one for all
    try {
      for (let round = 0; round < rounds; round += 1) {
        for (const name of this.#order()) {
          const body = {
            ...base,
            messages,
            speculative: name === "plain" ? false : base.speculative || true,
            // No run may find what another one has cached.
            cache_salt: `race-${crypto.getRandomValues(new Uint32Array(4)).join("-")}`,
          };
          runs[name].push(await this.#lane(name, body));
        }
      }
      result(runs, base.seed);
    } catch (error) {
      verdict("", error.name === "AbortError" ? "Stopped: nothing was compared." : "Nothing was compared.");
      if (error.name !== "AbortError") this.onFailure(error);
      for (const name of LANES) if (runs[name].length < rounds) byId(`${name}-note`).textContent = "did not end";
    }
    this.abort = null;
    byId("race-stop").disabled = true;
    this.onBusy(false);
  }

  // The second of two runs finds the machine warmer, so they take turns at going first.
  #order() {
    this.turns += 1;
    return this.turns % 2 ? LANES : [...LANES].reverse();
  }

  // One run, alone on the machine as far as this page goes.
  async #lane(name, body) {
    byId(`${name}-tokens`).replaceChildren();
    const answer = new Answer(byId(`${name}-tokens`));
    byId(`${name}-note`).textContent = "running";
    const [before, began] = [this.elapsed[name], performance.now()];
    const tick = () => {
      this.elapsed[name] = before + (performance.now() - began) / 1000;
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

function result(runs, seed) {
  const [plain] = runs.plain;
  const all = [...runs.plain, ...runs.speculative];
  const odd = all.find((run) => !compare(plain.ids, run.ids).identical);
  const parts = [];
  if (odd) {
    const { at } = compare(plain.ids, odd.ids);
    const kind = runs.plain.includes(odd) ? "in another plain run" : "speculatively";
    parts.push(`they differ at token ${at + 1}: ${shown(plain, at)} plainly, ${shown(odd, at)} ${kind}`);
  } else {
    parts.push(`all ${plain.ids.length} tokens are the same`);
    const [slow, quick] = [perToken(runs.plain), perToken(runs.speculative)];
    if (slow && quick) {
      const each = `${slow.toFixed(1)} against ${quick.toFixed(1)} ms a token, without the prompt`;
      parts.push(`speed-up ${times(slow / quick)} (${each})`);
      if (slow < quick && runs.plain.length === 1) parts.push("with other load on the machine, take more runs");
    }
    if (!runs.speculative.some((run) => Object.keys(run.counts).some((source) => source !== "target"))) {
      parts.push("no draft token was accepted: speculation was off, or every draft was rejected");
    }
  }
  parts.push(`seed ${seed}`);
  verdict(odd ? "no" : "yes", `identical: ${odd ? "no" : "yes"}`, `${parts.join("; ")}.`);
}

// Milliseconds of one token, the mean of all runs; null where the server cannot say.
function perToken(runs) {
  const found = runs.map((run) => run.metrics?.tpot_ms);
  return found.every(Boolean) ? found.reduce((sum, ms) => sum + ms, 0) / found.length : null;
}

const shown = ({ ids, texts }, at) => (at < ids.length ? `${ids[at]} ${JSON.stringify(texts[at])}` : "the end");
