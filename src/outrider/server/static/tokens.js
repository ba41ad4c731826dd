// Tokens on the page: each a span that shows where it came from. Text goes in as text, never as markup.

export const SOURCES = {
  draft_model: "draft model",
  suffix: "suffix lookup",
  ngram: "n-gram lookup",
  constraint: "constraint",
  other: "other drafter",
  target: "target",
};

// Whose token it was; the target's own tokens and those of plain decoding are "target".
export function sourceOf(token) {
  if (token.kind !== "accepted") return "target";
  return Object.hasOwn(SOURCES, token.source ?? "") && token.source !== "target" ? token.source : "other";
}

const KINDS = {
  accepted: (name) => `drafted by ${name}, accepted by the target`,
  recovered: () => "the target's own, at the first rejection",
  bonus: () => "the target's own, after a fully accepted draft or without a draft",
  plain: () => "the target's own, plain decoding",
};

// A token in words.
export function words(token) {
  const name = token.source ? `the ${SOURCES[token.source] ?? token.source}` : "a drafter";
  return `token ${token.id}: ${(KINDS[token.kind] ?? (() => token.kind))(name)}`;
}

// --- Traces: how a text came about, small enough to be kept ---------------------------------------------
//
// origins: "KIND" or "KIND SOURCE"; tokens: for each token its id, the length of its text, and an index of origins,
// all in one list. The texts follow one another in the message. A length of 0: the text comes with a later token.

const GIVEN = "given"; // text that the model did not write

export function newTrace(given = "") {
  const trace = { origins: [], tokens: [] };
  if (given) addToTrace(trace, { id: 0, text: given, kind: GIVEN });
  return trace;
}

export function addToTrace(trace, token) {
  const name = token.source ? `${token.kind} ${token.source}` : token.kind;
  let index = trace.origins.indexOf(name);
  if (index < 0) index = trace.origins.push(name) - 1;
  trace.tokens.push(token.id, token.text.length, index);
}

// A trace from a value of any kind, for a text of this length; null for what is none.
export function cleanTrace(raw, length) {
  const { origins, tokens } = raw ?? {};
  if (!Array.isArray(origins) || !Array.isArray(tokens) || origins.length > 50 || tokens.length % 3) return null;
  if (!origins.every((name) => typeof name === "string" && name.length <= 80)) return null;
  let total = 0;
  for (let i = 0; i < tokens.length; i += 3) {
    const [id, size, index] = tokens.slice(i, i + 3);
    if (![id, size, index].every((value) => Number.isSafeInteger(value) && value >= 0) || index >= origins.length) return null;
    total += size;
  }
  return total <= length ? { origins: [...origins], tokens: [...tokens] } : null;
}

// The tokens of a text with a trace: {id, text, kind, source}, and last what no token accounts for, as `given`.
export function* traced(text, trace) {
  let at = 0;
  for (let i = 0; i < (trace?.tokens.length ?? 0); i += 3) {
    const [id, size, index] = trace.tokens.slice(i, i + 3);
    const [kind, source] = trace.origins[index].split(" ");
    yield { id, text: text.slice(at, at + size), kind, source };
    at += size;
  }
  if (at < text.length) yield { id: 0, text: text.slice(at), kind: GIVEN };
}

// Fill an element with a text's tokens.
export function showTraced(element, text, trace) {
  const made = document.createDocumentFragment();
  let held = [];
  for (const token of traced(text, trace)) {
    if (token.kind === GIVEN) {
      made.append(token.text);
      continue;
    }
    held.push(token);
    if (!token.text) continue;
    made.append(span(token.text, held));
    held = [];
  }
  element.replaceChildren(made);
}

function span(text, tokens) {
  const made = document.createElement("span");
  const last = tokens.at(-1);
  made.textContent = text;
  made.className = last ? `token from-${sourceOf(last)}` : "token from-target";
  made.title = last ? tokens.map(words).join("\n") : "the rest of the text";
  return made;
}

// --- An answer as it comes -------------------------------------------------------------------------------

export class Answer {
  // element: its tokens are added to it. trace: added to as well, if given.
  constructor(element, trace = null) {
    this.element = element;
    this.trace = trace;
    this.ids = [];
    this.texts = [];
    this.counts = {}; // tokens by source
    this.kinds = new Set();
    this.text = "";
    this.written = ""; // with tool calls, which the server takes out of the text
    this.reasoning = "";
    this.calls = []; // OpenAI's tool calls
    this.metrics = null; // at the end
    this.seed = null;
    this.reason = null;
    this.times = []; // ms at which tokens came, of the last second or so
    this.held = []; // tokens whose text comes with a later one
  }

  // Take one chunk of a stream; returns how many tokens it brought.
  push(chunk) {
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const tokens = chunk.outrider?.tokens ?? [];
    const made = document.createDocumentFragment();
    for (const token of tokens) {
      this.ids.push(token.id);
      this.texts.push(token.text);
      const source = sourceOf(token);
      this.kinds.add(token.kind);
      this.counts[source] = (this.counts[source] ?? 0) + 1;
      this.held.push(token);
      this.written += token.text;
      if (this.trace) addToTrace(this.trace, token);
      if (token.text) made.append(this.#span(token.text));
    }
    this.text += delta.content ?? "";
    this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
    for (const call of delta.tool_calls ?? []) this.#call(call);
    this.reason = choice?.finish_reason ?? this.reason;
    if (this.reason && this.text.length > this.written.length && this.text.startsWith(this.written)) {
      made.append(this.#span(this.text.slice(this.written.length)));
      this.written = this.text;
    }
    this.element.append(made);
    this.metrics = chunk.outrider?.metrics ?? this.metrics;
    this.seed = chunk.outrider?.seed ?? this.seed;
    this.#clock(tokens.length);
    return tokens.length;
  }

  // Tokens per second just now, or null before it can be told.
  get rate() {
    const [first] = this.times;
    const last = this.times.at(-1);
    if (this.times.length < 3 || last.at <= first.at) return null;
    const count = this.times.reduce((sum, time) => sum + time.count, -first.count);
    return (1000 * count) / (last.at - first.at);
  }

  #call({ index = this.calls.length, id, function: made = {} }) {
    const call = (this.calls[index] ??= { id: id ?? `call_${index}`, type: "function", function: { name: "", arguments: "" } });
    call.function.name += made.name ?? "";
    call.function.arguments += made.arguments ?? "";
  }

  #clock(count) {
    if (!count) return;
    const at = performance.now();
    this.times.push({ at, count });
    while (this.times.length > 3 && at - this.times[0].at > 1500) this.times.shift();
  }

  #span(text) {
    const made = span(text, this.held);
    this.held = [];
    return made;
  }
}

// Lets the tokens of answers be asked about, by pointer or by arrow keys, and tells of them in `line`.
export function inspect(area, line) {
  let shown = null;
  const show = (token) => {
    shown?.classList.remove("at");
    shown = token;
    if (!token) return;
    token.classList.add("at");
    line.textContent = `“${token.textContent.replaceAll("\n", "↵")}”: ${token.title.replaceAll("\n", "; ")}`;
  };
  area.addEventListener("pointerover", (event) => {
    if (event.target.classList.contains("token") && event.target.closest(".tokens")) show(event.target);
  });
  area.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const box = event.target.closest(".tokens");
    if (!step || !box?.childElementCount) return;
    event.preventDefault();
    const inside = shown?.parentElement === box;
    const next = step > 0 ? box.firstElementChild : box.lastElementChild;
    show(inside ? (step > 0 ? shown.nextElementSibling : shown.previousElementSibling) ?? shown : next);
    shown.scrollIntoView({ block: "nearest" });
  });
}

// The legend, with the share of each source in one answer. What the server does not have is left out.
export function legend(list, counts, drafters) {
  const there = new Set(["target", "constraint", ...(drafters ?? Object.keys(SOURCES))]);
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  for (const item of list.querySelectorAll("[data-source]")) {
    const { source } = item.dataset;
    const count = counts[source] ?? 0;
    item.querySelector(".share").textContent = total ? `${Math.round((100 * count) / total)}%` : "";
    item.hidden = !count && (source === "other" || !there.has(source));
  }
}
