// Tests of the page's scripts that need no browser, run by test_page_units.py with `node --test` in a copy of the
// page's folder. Elements are those of a stand-in for the DOM, which refuses whatever could make markup live.

import assert from "node:assert/strict";
import test from "node:test";

const NAMES = new Set(
  `div span p h4 h5 h6 ul ol li blockquote table thead tbody tr th td em strong s a code pre br hr figure button`.split(" "),
);
const PROPERTIES = new Set(["className", "title", "href", "target", "rel", "start", "tabIndex", "type", "ariaLabel", "textContent"]);
const LOADING = /^(on|src|innerHTML|outerHTML|style|srcdoc|action|data)/;

class Element {
  constructor(name) {
    this.name = name;
    this.children = [];
    this.parent = null;
    const allowed = new Set(["name", "children", "parent"]);
    return new Proxy(this, {
      set(target, key, value) {
        assert.ok(!LOADING.test(key), `${name}.${String(key)} = ${value}`);
        assert.ok(allowed.has(key) || PROPERTIES.has(key), `${name}.${String(key)} = ${value}`);
        target[key] = value;
        return true;
      },
    });
  }
  append(...nodes) {
    for (const node of nodes) {
      assert.ok(typeof node === "string" || node instanceof Element);
      if (node instanceof Element) node.parent = this;
      this.children.push(node);
    }
  }
  remove() {
    this.parent.children = this.parent.children.filter((child) => child.parent !== this.parent || child.children !== this.children);
  }
  addEventListener() {}
}

globalThis.document = {
  createElement(name) {
    assert.ok(NAMES.has(name), `an element <${name}>`);
    return new Element(name);
  },
};

const { Rendered, safeAddress } = await import("./markdown.js");
const { pieces } = await import("./code.js");
const { parts, pretty, callName } = await import("./parts.js");
const request = await import("./request.js");
const conversation = await import("./conversation.js");
const { Store } = await import("./store.js");
const tokens = await import("./tokens.js");

const all = (element) => element.children.flatMap((child) => (typeof child === "string" ? [] : [child, ...all(child)]));
const textOf = (element) => element.children.map((child) => (typeof child === "string" ? child : textOf(child))).join("");
function rendered(text) {
  const box = new Element("div");
  new Rendered(box).update(text);
  return box;
}
const outline = (element) =>
  element.children.map((child) => (typeof child === "string" ? child : { [child.name]: outline(child) }));
const only = (text, name) => all(rendered(text)).filter((element) => element.name === name);

// Numbers that are the same in every run (mulberry32).
function random(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// --- Markdown ----------------------------------------------------------------------------------------

test("blocks and marks become elements", () => {
  assert.deepEqual(outline(rendered("# One\n\ntwo **three** *four* `five` ~~six~~")), [
    { div: [{ h4: ["One"] }] },
    { div: [{ p: ["two ", { strong: ["three"] }, " ", { em: ["four"] }, " ", { code: ["five"] }, " ", { s: ["six"] }] }] },
  ]);
  assert.deepEqual(outline(rendered("- a\n- b\n  1. c")), [
    { div: [{ ul: [{ li: ["a"] }, { li: ["b", { ol: [{ li: ["c"] }] }] }] }] },
  ]);
  assert.equal(only("5. five\n6. six", "ol")[0].start, 5);
  assert.equal(only("| a | b |\n|--:|:-:|\n| 1 | 2 |", "td")[0].className, "align-right");
  assert.equal(only("####### no heading", "h6").length, 0);
  assert.equal(only("###### six", "h6").length, 1);
});

test("a block of code has its language, its text and a button", () => {
  const box = rendered("```python\nprint('<b>')\n```");
  const [figure] = all(box).filter(({ name }) => name === "figure");
  assert.equal(textOf(all(figure).find(({ className }) => className === "language")), "python");
  assert.equal(textOf(all(figure).find(({ name }) => name === "pre")), "print('<b>')\n");
  assert.equal(all(figure).filter(({ name }) => name === "button").length, 1);
  assert.equal(textOf(only("```\nunclosed <script>", "pre")[0]), "unclosed <script>");
});

test("HTML stays text", () => {
  for (const text of [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a <b onclick=x>b</b> c",
    "<!-- x --><svg/onload=alert(1)>",
    "<style>*{display:none}</style>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<a href='javascript:alert(1)'>x</a>",
    "<https://example.org/<script>>",
  ]) {
    const found = textOf(rendered(text));
    assert.ok(found.includes("<") || found.includes("example"), text);
  }
});

test("links lead to http and https only", () => {
  for (const address of [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\nscript:alert(1)",
    "&#106;avascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "blob:null/x",
    "mailto:a@example.org",
    "//example.org/x",
    "/v1/models",
    "#race",
    "https:",
    "\u0001javascript:alert(1)",
  ]) {
    assert.equal(safeAddress(address), null, address);
    for (const text of [`[a](${address})`, `[a](<${address}>)`, `![a](${address})`, `<${address}>`, `[a]\n\n[a]: ${address}`, address]) {
      assert.deepEqual(only(text, "a"), [], text);
    }
  }
  for (const text of ["[a](https://example.org/x)", "<https://example.org/x>", "see https://example.org/x", "[a][1]\n\n[1]: https://example.org/x"]) {
    const [link] = only(text, "a");
    assert.equal(link.href, "https://example.org/x", text);
    assert.match(link.rel, /noopener/);
    assert.match(link.rel, /noreferrer/);
    assert.equal(link.target, "_blank");
  }
  assert.deepEqual(only("see example.org and a@example.org", "a"), []);
});

test("images are links: nothing is loaded", () => {
  const [link] = only("![a cat](https://example.org/cat.png)", "a");
  assert.equal(link.href, "https://example.org/cat.png");
  assert.equal(textOf(link), "[image: a cat]");
});

const FRAGMENTS = [
  "a", "word ", "\n", "\n\n", "    ", "\t", "*", "**", "_", "`", "```", "```js\n", "~~~", "~~", "#", "## ", "- ", "1. ", "> ", "|", "|-|-|\n",
  "[", "]", "](", ")", "![", "<", ">", "</", "<script>", "</script>", "<img src=x onerror=alert(1)>", "<svg onload=x>", "javascript:", "data:text/html,",
  "https://e.org/", "http://", "]: ", "&lt;", "&#60;", "&#x3c;", "\\", "\u0000", "\u202e", "\ud83d", "é", "$$", "<think>", "</think>", '"', "'", "(", "%3Cscript%3E", "style=",
];

test("no text of any kind makes anything but the elements allowed", () => {
  const next = random(1);
  for (let round = 0; round < 3000; round += 1) {
    const text = Array.from({ length: 1 + Math.floor(next() * 40) }, () => FRAGMENTS[Math.floor(next() * FRAGMENTS.length)]).join("");
    const box = rendered(text); // the stand-in refuses everything else
    for (const element of all(box)) {
      if (element.href !== undefined) assert.match(element.href, /^https?:\/\/[^/]/, text);
    }
    for (const part of parts(text)) rendered(part.text);
  }
});

test("a text that grows ends as if it had come at once, and keeps what did not change", () => {
  const next = random(2);
  for (let round = 0; round < 200; round += 1) {
    const text = Array.from({ length: 60 }, () => FRAGMENTS[Math.floor(next() * FRAGMENTS.length)]).join("");
    const box = new Element("div");
    const growing = new Rendered(box);
    for (let end = 0; end < text.length; end += 1 + Math.floor(next() * 30)) growing.update(text.slice(0, end));
    growing.update(text);
    assert.deepEqual(outline(box), outline(rendered(text)));
  }
  const box = new Element("div");
  const growing = new Rendered(box);
  growing.update("one\n\n```\ntwo\n```\n\nthr");
  const before = [...box.children];
  growing.update("one\n\n```\ntwo\n```\n\nthree");
  assert.equal(box.children[0], before[0]);
  assert.equal(box.children[1], before[1]);
  growing.update("one");
  assert.equal(box.children.length, 1);
});

test("no text holds the page up", () => {
  const size = 20_000;
  for (const unit of ["[", "](", "*a_ ", "> ", "- ", "`", "<", "![a](", "a**b", "&#60;", "| ", "<think>", "<tool_call>{", "\\", "[a]: <", "~~~\n", "((", "https://a"]) {
    const text = unit.repeat(size / unit.length);
    const began = performance.now();
    rendered(text);
    parts(text);
    pieces(text, "js");
    assert.ok(performance.now() - began < 10_000, unit); // of any sensible machine, with much to spare
  }
  assert.equal(textOf(rendered(`${"> ".repeat(5000)}x`)).includes("x"), true); // nothing is lost in the depth
  const long = "*a* ".repeat(100_000);
  assert.equal(textOf(rendered(long)), long); // too long: as it is
});

// --- Code --------------------------------------------------------------------------------------------

test("pieces of code are the code", () => {
  const next = random(3);
  const bits = ["def ", "x", "'", '"', "`", "\\", "\n", "#", "//", "/*", "*/", "--", "12", "return ", "'''", " ", "é"];
  for (const language of ["python", "js", "rust", "sql", "json", "c", "nothing", "__proto__", "constructor"]) {
    for (let round = 0; round < 100; round += 1) {
      const code = Array.from({ length: 40 }, () => bits[Math.floor(next() * bits.length)]).join("");
      assert.equal(pieces(code, language).map(({ text }) => text).join(""), code);
    }
  }
  const kinds = (code, language) => pieces(code, language).filter(({ kind }) => kind).map(({ kind, text }) => [kind, text]);
  assert.deepEqual(kinds("def f(x):  # a\n  return 'def' + 1", "python"), [
    ["keyword", "def"], ["comment", "# a"], ["keyword", "return"], ["string", "'def'"], ["number", "1"],
  ]);
  assert.deepEqual(kinds("let a = `x\n` // b", "JavaScript"), [["keyword", "let"], ["string", "`x\n`"], ["comment", "// b"]]);
  assert.deepEqual(kinds("fn f<'a>(x: &'a str)", "rust"), [["keyword", "fn"]]);
  assert.deepEqual(kinds("def f", "text"), []);
});

// --- Parts of an answer ------------------------------------------------------------------------------

test("reasoning and tool calls are found, where they are none stay text", () => {
  const short = (text) => parts(text).map(({ kind, text: inside, open }) => [kind, inside.trim(), open]);
  assert.deepEqual(short("plain"), [["text", "plain", false]]);
  assert.deepEqual(short(""), []);
  assert.deepEqual(short("<think>\nhm\n</think>\n\nyes"), [["reasoning", "hm", false], ["text", "yes", false]]);
  assert.deepEqual(short("<think>\nhm"), [["reasoning", "hm", true]]);
  assert.deepEqual(short("<think></think>yes"), [["text", "yes", false]]);
  assert.deepEqual(short("<thinking>a</thinking>b"), [["reasoning", "a", false], ["text", "b", false]]);
  assert.deepEqual(short("hm, yes\n</think>\n\nyes"), [["reasoning", "hm, yes", false], ["text", "yes", false]]);
  assert.deepEqual(short("use </think> in text"), [["text", "use </think> in text", false]]);
  assert.deepEqual(short("```\n</think>\n```"), [["text", "```\n</think>\n```", false]]);
  assert.deepEqual(short("say <think> now"), [["text", "say <think> now", false]]);
  assert.deepEqual(short('a\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nb'), [
    ["text", "a", false], ["call", '{"name": "f", "arguments": {}}', false], ["text", "b", false],
  ]);
  assert.deepEqual(short('<tool_call>{"name": "f"'), [["call", '{"name": "f"', true]]);
  assert.deepEqual(short('```\n<tool_call>{"name": "f"}</tool_call>\n```').map(([kind]) => kind), ["text"]);
  assert.deepEqual(short("Use <tool_call> tags"), [["text", "Use <tool_call> tags", false]]);
  assert.equal(callName('{"arguments": {}, "name": "multiply"}'), "multiply");
  assert.equal(callName("nothing"), "");
  assert.equal(pretty('{"a":1}'), '{\n  "a": 1\n}');
  assert.equal(pretty("{not json"), "{not json");
});

// --- Settings and requests ---------------------------------------------------------------------------

test("settings become a request's fields", () => {
  const fields = (more) => JSON.parse(JSON.stringify(request.requestFields({ ...request.DEFAULTS, ...more })));
  assert.deepEqual(fields({}), { temperature: 0, max_tokens: 1024, speculative: { method: "auto" }, stream: true, outrider: true });
  assert.deepEqual(fields({ temperature: "", max_tokens: "" }), { speculative: { method: "auto" }, stream: true, outrider: true });
  const all = fields({
    temperature: "0.7", top_p: "0.9", top_k: "40", min_p: "0.05", seed: "7", max_tokens: "9", stop: "END\n\\n\\n\na\\\\n", speculation: "suffix",
    num_speculative_tokens: "4", response_format: "json_object", more: '{"repetition_penalty": 1.1}',
  });
  assert.deepEqual(all, {
    temperature: 0.7, top_p: 0.9, top_k: 40, min_p: 0.05, seed: 7, max_tokens: 9, stop: ["END", "\n\n", "a\\n"], response_format: { type: "json_object" },
    speculative: { method: "suffix", num_speculative_tokens: 4 }, repetition_penalty: 1.1, stream: true, outrider: true,
  });
  assert.equal(fields({ speculation: "off" }).speculative, false);
  for (const more of ["{", "[]", "null", "1", '"a"', '{"stream": false}', '{"messages": []}', '{"n": 2}']) {
    assert.throws(() => fields({ more }), /Further fields/, more);
  }
});

test("settings of any kind are made whole", () => {
  assert.deepEqual(request.cleanSettings(null), request.DEFAULTS);
  assert.deepEqual(request.cleanSettings([1, 2]), request.DEFAULTS);
  assert.equal(request.cleanSettings({ temperature: 0.5 }).temperature, "0.5");
  assert.equal(request.cleanSettings({ temperature: { toString: 1 } }).temperature, "0");
  assert.deepEqual(Object.keys(request.cleanSettings({ __proto__: { x: 1 }, y: 2 })), Object.keys(request.DEFAULTS));
});

// --- Conversations -----------------------------------------------------------------------------------

const talk = () => ({
  ...conversation.newConversation(),
  messages: [
    { role: "user", content: "What is 5 times 6?\nSay it." },
    { role: "assistant", content: "It is 30.", reasoning: "5 * 6", reason: "length" },
  ],
});

test("a conversation survives export and import", () => {
  const before = talk();
  before.settings.system = "Be brief.";
  before.messages.push({
    role: "assistant", content: "", tool_calls: [{ id: "call_0", type: "function", function: { name: "f", arguments: '{"a": "`"}' } }],
  });
  const [after] = conversation.readImport(conversation.exportJson([before]));
  assert.notEqual(after.id, before.id);
  assert.deepEqual({ ...after, id: "" }, { ...before, id: "" });
  const text = conversation.exportMarkdown(before);
  for (const words of ["# What is 5 times 6? Say it.", "## System\n\nBe brief.", "## User", "## Assistant", "> 5 * 6", "It is 30.", '```json\n{"a": "`"}\n```']) {
    assert.ok(text.includes(words), words);
  }
  assert.equal(conversation.fileName(before, "md"), "What-is-5-times-6-Say-it.md");
  assert.equal(conversation.fileName(conversation.newConversation(), "json"), "New-conversation.json");
});

test("OpenAI's messages can be imported", () => {
  const messages = [
    { role: "system", content: "Be brief." },
    { role: "user", content: [{ type: "text", text: "a" }, { type: "text", text: "b" }] },
    { role: "assistant", content: null, tool_calls: [{ id: "c", function: { name: "f", arguments: { a: 1 } } }] },
    { role: "tool", content: "3", tool_call_id: "c" },
  ];
  for (const raw of [messages, { messages }, [{ messages }]]) {
    const [found] = conversation.readImport(JSON.stringify(raw));
    assert.equal(found.settings.system, "Be brief.");
    assert.deepEqual(found.messages.map(({ role }) => role), ["user", "assistant", "tool"]);
    assert.equal(found.messages[0].content, "ab");
    assert.equal(found.messages[1].tool_calls[0].function.arguments, '{"a":1}');
    const sent = JSON.parse(JSON.stringify(conversation.requestMessages(found)));
    assert.deepEqual(sent[0], { role: "system", content: "Be brief." });
    assert.deepEqual(sent[3], { role: "tool", content: "3", tool_call_id: "c" });
  }
});

test("a file that is none is refused in one line", () => {
  for (const text of [
    "", "x", "1", "null", "[]", "{}", '{"conversations": []}', '{"conversations": [1]}', '{"messages": 1}', '{"messages": [1]}', '{"messages": [{"role": "x"}]}',
    '{"messages": [{"role": "user", "content": 1}]}', '{"messages": [{"role": "user", "content": [{"text": {"toString": 1}}]}]}',
    '{"messages": [{"role": "assistant", "tool_calls": [1]}]}', '{"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": {"toString": 1}}}]}]}',
    JSON.stringify({ conversations: Array(501).fill({ messages: [] }) }),
  ]) {
    assert.throws(() => conversation.readImport(text), (error) => !(error instanceof TypeError) && /^[A-Z][^\n]*\.$/.test(error.message), text.slice(0, 80));
  }
});

test("titles are the first message's beginning, or given", () => {
  const found = talk();
  assert.equal(conversation.titleOf(found), "What is 5 times 6? Say it.");
  assert.equal(conversation.titleOf({ ...found, title: "Sums", named: true }), "Sums");
  assert.equal(conversation.titleOf(conversation.newConversation()), "New conversation");
  assert.equal(conversation.titleOf({ messages: [{ role: "user", content: "x".repeat(500) }] }).length, 60);
});

test("an answer can go on where it was cut, not where a grammar would begin anew", () => {
  const found = talk();
  assert.ok(conversation.canContinue(found));
  for (const reason of ["stopped", "failed", "edited", undefined]) {
    found.messages[1].reason = reason;
    assert.ok(conversation.canContinue(found), reason);
  }
  found.messages[1].reason = "stop";
  assert.ok(!conversation.canContinue(found));
  found.messages[1].reason = "length";
  found.settings.response_format = "json_object";
  assert.ok(!conversation.canContinue(found));
  assert.ok(!conversation.canContinue({ ...found, messages: [] }));
});

// --- The store ---------------------------------------------------------------------------------------

class FakeStorage {
  constructor(room = Infinity) {
    this.items = new Map();
    this.room = room;
  }
  get length() {
    return this.items.size;
  }
  key(i) {
    return [...this.items.keys()][i] ?? null;
  }
  getItem(name) {
    return this.items.get(name) ?? null;
  }
  setItem(name, text) {
    const others = [...this.items].reduce((sum, [key, value]) => sum + (key === name ? 0 : value.length), 0);
    if (others + text.length > this.room) throw new Error("QuotaExceededError");
    this.items.set(name, text);
  }
  removeItem(name) {
    this.items.delete(name);
  }
}
const numbered = (i, content = "x") => ({ ...conversation.newConversation(), updated: i, messages: [{ role: "user", content: `${i} ${content}` }] });

test("what is stored is found again, the latest first", () => {
  const storage = new FakeStorage();
  const store = new Store(storage);
  for (const i of [2, 3, 1]) assert.deepEqual(store.save(numbered(i)), { saved: true, removed: [] });
  const again = new Store(storage);
  assert.deepEqual(again.list().map(({ updated }) => updated), [3, 2, 1]);
  again.remove(again.list()[0].id);
  store.load(); // as another tab does
  assert.deepEqual(store.list().map(({ updated }) => updated), [2, 1]);
});

test("the oldest make room, by number, by size and by the browser's own limit", () => {
  const big = "y".repeat(10_000);
  for (const [store, kept] of [
    [new Store(new FakeStorage(), 3), [5, 4, 3]],
    [new Store(new FakeStorage(), 100, 35_000), [5, 4, 3]],
    [new Store(new FakeStorage(35_000)), [5, 4, 3]],
  ]) {
    const removed = [1, 2, 3, 4, 5].flatMap((i) => store.save(numbered(i, big)).removed);
    assert.deepEqual(store.list().map(({ updated }) => updated), kept);
    assert.deepEqual(removed.map((title) => title[0]), ["1", "2"]);
  }
});

test("one that does not fit is told of, and loses no other", () => {
  const storage = new FakeStorage();
  const store = new Store(storage, 10, 5000);
  store.save(numbered(1));
  const huge = numbered(2, "z".repeat(6000));
  assert.deepEqual(store.save(huge), { saved: false, removed: [] });
  assert.equal(storage.length, 1);
  store.load();
  assert.equal(store.get(huge.id), huge); // while the page is open
  assert.deepEqual(new Store(null).save(huge), { saved: false, removed: [] });
});

test("what others have put into the storage harms nothing", () => {
  const storage = new FakeStorage();
  const mine = numbered(1);
  new Store(storage).save(mine);
  for (const [name, text] of [
    ["outrider.conversation.x", "{"], ["outrider.conversation.y", "null"], ["outrider.conversation.__proto__", '{"messages": []}'],
    ["outrider.conversation." + "0".repeat(32), '{"messages": [{"role": "user", "content": 1}]}'], ["other", "x"],
  ]) storage.items.set(name, text);
  const store = new Store(storage);
  assert.deepEqual(store.list().map(({ id }) => id), [mine.id]);
});

// --- Tokens ------------------------------------------------------------------------------------------

test("a trace gives the tokens back", () => {
  const trace = tokens.newTrace("given ");
  const made = [
    { id: 5, text: "a", kind: "bonus" }, { id: 6, text: "", kind: "accepted", source: "suffix" }, { id: 7, text: "é", kind: "accepted", source: "suffix" },
  ];
  for (const token of made) tokens.addToTrace(trace, token);
  const found = [...tokens.traced("given aé!", trace)];
  assert.deepEqual(found.map(({ id, text, kind }) => [id, text, kind]), [
    [0, "given ", "given"], [5, "a", "bonus"], [6, "", "accepted"], [7, "é", "accepted"], [0, "!", "given"],
  ]);
  assert.deepEqual(tokens.cleanTrace(JSON.parse(JSON.stringify(trace)), 9), trace);
  for (const raw of [
    null, 1, {}, { origins: [], tokens: [1] }, { origins: [], tokens: [1, 1, 0] }, { origins: ["a"], tokens: [1, 99, 0] }, { origins: ["a"], tokens: [1, -1, 0] },
    { origins: [1], tokens: [] }, { origins: ["a"], tokens: [1, "1", 0] },
  ]) assert.equal(tokens.cleanTrace(raw, 9), null, JSON.stringify(raw));
});

test("a token's source and words", () => {
  const of = (kind, source) => tokens.sourceOf({ id: 1, text: "a", kind, source });
  assert.deepEqual(
    [of("accepted", "draft_model"), of("accepted", "something new"), of("accepted", "target"), of("accepted", "toString"), of("accepted"), of("bonus")],
    ["draft_model", "other", "other", "other", "other", "target"],
  );
});
