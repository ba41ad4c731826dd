// Tokens on the page: each a span that shows where it came from. Text goes in as text, never as markup.

export const SOURCES = {
  draft_model: "draft model",
  suffix: "suffix",
  ngram: "n-gram",
  constraint: "constraint",
  other: "other drafter",
  target: "target",
};

// Whose guess a token was; the target's own tokens and those of plain decoding are "target".
export function sourceOf(token) {
  if (token.kind !== "accepted") return "target";
  return token.source in SOURCES && token.source !== "target" ? token.source : "other";
}

const KINDS = {
  accepted: (name) => `guessed by ${name}, accepted by the target`,
  recovered: () => "the target's own, in the place of a wrong guess",
  bonus: () => "the target's own, after the guesses or without any",
  plain: () => "the target's own, plain decoding",
};

// A token in words.
export function words(token) {
  const name = token.source ? (SOURCES[token.source] ?? token.source) : "a drafter";
  return `token ${token.id}: ${(KINDS[token.kind] ?? (() => token.kind))(name)}`;
}

// One answer as it comes, written into an element.
export class Answer {
  constructor(element) {
    this.element = element;
    this.ids = [];
    this.texts = [];
    this.counts = {}; // tokens by source
    this.kinds = new Set();
    this.text = "";
    this.metrics = null; // at the end
    this.seed = null;
    this.reason = null;
    this.times = []; // ms at which tokens came, of the last second or so
    this.held = []; // tokens whose text comes with a later one
    element.replaceChildren();
  }

  // Take one chunk of a stream; returns how many tokens it brought.
  push(chunk) {
    const choice = chunk.choices?.[0];
    const content = choice?.delta?.content ?? "";
    const tokens = chunk.outrider?.tokens ?? [];
    const made = document.createDocumentFragment();
    let written = "";
    for (const token of tokens) {
      this.ids.push(token.id);
      this.texts.push(token.text);
      const source = sourceOf(token);
      this.kinds.add(token.kind);
      this.counts[source] = (this.counts[source] ?? 0) + 1;
      this.held.push(token);
      if (token.text) made.append(this.#span(token.text));
      written += token.text;
    }
    if (content.length > written.length) made.append(this.#span(content.slice(written.length)));
    this.element.append(made);
    this.text += content;
    this.reason = choice?.finish_reason ?? this.reason;
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

  #clock(count) {
    if (!count) return;
    const at = performance.now();
    this.times.push({ at, count });
    while (this.times.length > 3 && at - this.times[0].at > 1500) this.times.shift();
  }

  #span(text) {
    const made = document.createElement("span");
    const tokens = this.held;
    const last = tokens.at(-1);
    made.textContent = text;
    made.className = last ? `token from-${sourceOf(last)}` : "token from-target";
    made.title = last ? tokens.map(words).join("\n") : "the rest of the text";
    this.held = [];
    return made;
  }
}

// Lets the tokens of answers be asked about, by pointer or by arrow keys, and tells of them in `line`.
export function inspect(area, line) {
  let shown = null;
  const show = (span) => {
    shown?.classList.remove("at");
    shown = span;
    if (!span) return;
    span.classList.add("at");
    line.textContent = `“${span.textContent.replaceAll("\n", "↵")}”: ${span.title.replaceAll("\n", "; ")}`;
  };
  area.addEventListener("pointerover", (event) => {
    if (event.target.classList.contains("token")) show(event.target);
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
    const count = counts[item.dataset.source] ?? 0;
    item.querySelector(".share").textContent = total ? `${Math.round((100 * count) / total)}%` : "";
    item.hidden = !count && (item.dataset.source === "other" || !there.has(item.dataset.source));
  }
}
