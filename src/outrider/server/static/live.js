// The figures: what the server says of itself, and what the page sees of its own answers.

import { get } from "./api.js";
import { byId } from "./dom.js";
import { SOURCES, legend } from "./tokens.js";

const IDLE = 3000; // ms between looks at the server
const BUSY = 400;
const SVG = "http://www.w3.org/2000/svg";
const put = (name, text) => {
  const element = byId(name);
  if (element.textContent !== text) element.textContent = text;
};

export const percent = (part) => `${Math.round(100 * part)}%`;
export const times = (ratio) => `×${ratio.toFixed(2)}`;
export const seconds = (value) => `${value.toFixed(value < 10 ? 2 : 1)} s`;
const perSecond = (rate) => (rate < 10 ? rate.toFixed(1) : String(Math.round(rate)));
const millis = (value) => (value < 1 ? `${(1000 * value).toPrecision(3)} ms` : `${value.toPrecision(3)} s`);

export class Live {
  // key: gives the API key. onStatus, onFailure: told of every look at the server.
  constructor(key, onStatus, onFailure) {
    this.key = key;
    this.onStatus = onStatus;
    this.onFailure = onFailure;
    this.answers = new Set(); // under way
    this.status = null;
    this.timer = null;
    document.addEventListener("visibilitychange", () => document.hidden || this.look());
  }

  // Look now, and again after a while.
  async look() {
    clearTimeout(this.timer);
    const mine = (this.turn = (this.turn ?? 0) + 1);
    try {
      const found = await get("v1/outrider/status", this.key());
      if (mine !== this.turn) return;
      this.status = found;
      this.#show(found);
      this.onStatus(found);
    } catch (failure) {
      if (mine !== this.turn) return;
      this.onFailure(failure);
    }
    this.timer = setTimeout(() => this.#again(), this.answers.size ? BUSY : IDLE);
  }

  #again() {
    if (!document.hidden) this.look();
  }

  begin(answer) {
    if (!this.answers.size) {
      const { reckoned_seconds: spent = 0, plain_seconds: plain = 0 } = this.status?.engine ?? {};
      this.since = [spent, plain];
      put("against", "–");
      put("against-more", "estimate, this answer");
    }
    this.answers.add(answer);
    this.look();
  }

  // A chunk has come.
  tick(answer) {
    this.#legend(answer.counts);
    if (answer.rate !== null) this.#rate(answer.rate, "just now");
  }

  end(answer) {
    this.answers.delete(answer);
    this.#legend(answer.counts);
    const { metrics } = answer;
    if (metrics) {
      if (metrics.decode_tokens_per_s) this.#rate(metrics.decode_tokens_per_s, "last answer");
      if (metrics.num_draft_tokens) {
        put("acceptance", percent(metrics.acceptance_rate));
        put("acceptance-more", `${metrics.num_accepted_tokens} of ${metrics.num_draft_tokens}, last answer`);
      } else {
        put("acceptance", "–");
        put("acceptance-more", "nothing drafted, last answer");
      }
      if (metrics.block_efficiency) put("per-pass", metrics.block_efficiency.toFixed(2));
      const plain = answer.kinds.has("plain") && answer.kinds.size === 1;
      put("why", plain ? "off: plain decoding was asked for" : metrics.speculation);
    }
    this.look();
  }

  #legend(counts) {
    legend(byId("legend"), counts, this.status?.speculation.drafters);
  }

  #rate(rate, when) {
    put("rate", perSecond(rate));
    put("rate-more", `tokens/s, ${when}`);
  }

  // The one speed-up: of the page's last answer, or before there is one, of all requests of the server.
  #against({ reckoned_seconds: spent, plain_seconds: plain, measured_speedup: measured }) {
    if (!this.since) {
      put("against", measured === null ? "–" : times(measured));
      put("against-more", measured === null ? "no estimate yet" : "estimate, all requests so far");
      return;
    }
    if (spent - this.since[0] < 0.05) return;
    put("against", times((plain - this.since[1]) / (spent - this.since[0])));
    put("against-more", `estimate, ${this.answers.size ? "this" : "last"} answer`);
  }

  #show({ engine }) {
    this.#against(engine);
    if (byId("why").textContent === "" && engine.speculation) put("why", engine.speculation);
    if (!this.since) this.#legend({});
    this.#steps(engine.recent);
    this.#drafters(engine.by_drafter);
    this.#curve(engine.pass_seconds, engine.pass_context, engine.recent);
  }

  // Bars: the draft length of each of the last steps, and of it what was accepted.
  #steps(recent) {
    const height = Math.max(4, ...recent.map(([drafted]) => drafted));
    const parts = recent.flatMap(([drafted, accepted], i) => [
      bar("drafted", i, drafted / height),
      bar("accepted", i, accepted / height),
      bar("step", i, 0.04),
    ]);
    const drawing = byId("steps");
    drawing.replaceChildren(...parts);
    const drafted = recent.reduce((sum, [count]) => sum + count, 0);
    const without = recent.filter(([count]) => !count).length;
    const mean = recent.length ? (drafted / recent.length).toFixed(1) : "–";
    const text = recent.length
      ? `last ${recent.length} steps: ${mean} tokens drafted on average, at most ${Math.max(...recent.map(([n]) => n))}; ${without} without a draft`
      : "no steps yet";
    put("steps-more", text);
  }

  #drafters(counts) {
    const rows = Object.entries(counts).map(([name, count]) => {
      const row = document.createElement("tr");
      const rate = count.num_draft_tokens ? percent(count.num_accepted_tokens / count.num_draft_tokens) : "–";
      const cells = [count.num_drafts, count.num_draft_tokens, count.num_accepted_tokens, rate];
      row.append(cell("th", SOURCES[name] ?? name), ...cells.map((text) => cell("td", text)));
      row.firstChild.scope = "row";
      return row;
    });
    byId("drafters").tBodies[0].replaceChildren(...rows);
    byId("drafters").hidden = !rows.length;
    byId("no-drafts").hidden = rows.length > 0;
  }

  #curve(curve, context, recent) {
    byId("curve-there").hidden = !curve.length;
    byId("curve-none").hidden = curve.length > 0;
    if (!curve.length) return;
    const width = recent.length ? 1 + recent.reduce((sum, [drafted]) => sum + drafted, 0) / recent.length : 1;
    drawCurve(byId("curve"), curve, width);
    const eight = curve[7] / curve[0];
    put(
      "curve-more",
      `A pass over one token takes ${millis(curve[0])}, over eight ${millis(curve[7])}: ${eight.toFixed(1)} times as ` +
        `long (texts of about ${context} tokens). The dot is the mean pass of the last steps.`,
    );
    const body = byId("curve-table").tBodies[0];
    body.replaceChildren(
      ...[1, 2, 4, 8, 16, 32].filter((n) => n <= curve.length).map((n) => {
        const row = document.createElement("tr");
        row.append(cell("td", n), cell("td", millis(curve[n - 1])), cell("td", times(curve[n - 1] / curve[0])));
        return row;
      }),
    );
  }
}

function cell(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function bar(kind, at, part) {
  const height = 32 * part;
  return shape("rect", { class: kind, x: 4 * at, y: 32 - height, width: 3, height });
}

// T(n) in ms over n, and for comparison the line that n passes of one token would follow.
function drawCurve(drawing, curve, width) {
  const [left, right, top, bottom] = [38, 312, 18, 136];
  const most = 1.1 * Math.max(curve.at(-1), 2 * curve[0]);
  const x = (n) => left + ((n - 1) / (curve.length - 1)) * (right - left);
  const y = (s) => bottom - (s / most) * (bottom - top);
  const line = (points) => points.map(([n, s], i) => `${i ? "L" : "M"}${x(n).toFixed(1)} ${y(s).toFixed(1)}`).join("");
  const parts = [];
  const [unit, per] = most < 2 ? ["ms", 1000] : ["s", 1];
  const step = nice((per * most) / 5);
  for (let tick = 0; tick <= per * most; tick += step) {
    const at = y(tick / per);
    parts.push(shape("line", { class: "grid", x1: left, x2: right, y1: at, y2: at }));
    parts.push(shape("text", { x: left - 5, y: at + 4, "text-anchor": "end" }, String(+tick.toPrecision(3))));
  }
  for (const n of [1, 8, 16, 24, 32].filter((n) => n <= curve.length)) {
    parts.push(shape("text", { x: x(n), y: bottom + 15, "text-anchor": "middle" }, String(n)));
  }
  parts.push(shape("text", { x: right, y: bottom + 30, "text-anchor": "end" }, "tokens in the pass"));
  parts.push(shape("text", { x: left - 5, y: 11, "text-anchor": "end" }, unit));
  const end = Math.min(curve.length, most / curve[0]);
  parts.push(shape("path", { class: "apart", d: line([[1, curve[0]], [end, end * curve[0]]]) }));
  parts.push(shape("path", { class: "together", d: line(curve.map((s, i) => [i + 1, s])) }));
  const low = Math.min(curve.length, Math.max(1, Math.floor(width)));
  const high = Math.min(curve.length, low + 1);
  const at = Math.min(width, curve.length);
  const seconds = curve[low - 1] + (curve[high - 1] - curve[low - 1]) * (at - low);
  parts.push(shape("circle", { class: "now", cx: x(at), cy: y(seconds), r: 4.5 }));
  drawing.replaceChildren(drawing.querySelector("title"), ...parts);
}

// A round number near x: 1, 2 or 5 times a power of ten.
function nice(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return power * ([1, 2, 5].find((n) => n * power >= x) ?? 10);
}
