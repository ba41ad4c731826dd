// Blocks of code: a line with the language and a copy button above the highlighted text.

import { copyButton, make } from "./dom.js";

const MAX_CHARS = 50_000; // longer code is shown without colours

const SLASH = String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`;
const HASH = String.raw`#[^\n]*`;
const DASH = String.raw`--[^\n]*`;
const QUOTED = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const BACKTICKS = "`(?:[^`\\\\]|\\\\[\\s\\S])*`?";
const TRIPLE = String.raw`"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)`;
const CHARACTER = String.raw`"(?:[^"\\]|\\[\s\S])*"?|'(?:[^'\\\n]|\\.)'`; // 'a is a lifetime in Rust
const NUMBER = String.raw`\b\d[\w.]*`;
const WORD = String.raw`[A-Za-z_$][\w$]*`;

// For each kind of language: its names, its comments and its strings.
const KINDS = [
  ["python py gdscript", HASH, `${TRIPLE}|${QUOTED}`],
  ["sh bash zsh shell console fish yaml yml toml ruby rb r perl make makefile dockerfile cmake elixir nix", HASH, QUOTED],
  ["javascript js jsx mjs typescript ts tsx go golang dart kotlin swift scala groovy", SLASH, `${BACKTICKS}|${QUOTED}`],
  ["c h cpp c++ cc cxx hpp cuda java csharp cs c# php objc glsl hlsl css scss less proto zig json jsonc json5", SLASH, QUOTED],
  ["rust rs", SLASH, CHARACTER],
  ["sql lua haskell hs ada elm", DASH, QUOTED],
];

const KEYWORDS = new Set(
  `abstract alignas and as assert async auto await bool boolean break case catch char class const constexpr continue
  crate def default defer del delete do double done elif else elsif end enum esac except export extends extern false
  False fi final finally float fn for foreach from func function global go goto if impl implements import in include
  inline instanceof int interface is lambda let local long loop match mod module mut namespace new nil none None
  nonlocal not null nullptr operator or override package pass private protected pub public raise range readonly
  require return self Self short signed sizeof static struct super switch template then this throw throws trait true
  True try type typedef typename typeof undefined union unless unsafe unsigned until use using var virtual void
  volatile when where while with yield
  SELECT FROM WHERE JOIN LEFT RIGHT INNER OUTER ON GROUP BY ORDER HAVING LIMIT INSERT INTO VALUES UPDATE SET DELETE
  CREATE TABLE INDEX DROP ALTER PRIMARY KEY FOREIGN REFERENCES NOT NULL AND OR AS DISTINCT UNION ALL CASE WHEN THEN
  ELSE END select where join left right inner outer on group by order having limit insert into values update set
  create table index drop alter primary key foreign references distinct all`.split(/\s+/),
);

const PATTERNS = new Map();
for (const [names, comment, text] of KINDS) {
  const pattern = new RegExp(`(?<comment>${comment})|(?<string>${text})|(?<number>${NUMBER})|(?<word>${WORD})`, "g");
  for (const name of names.split(" ")) PATTERNS.set(name, pattern);
}

// Code as pieces {kind, text}, which joined are the code again. kind: comment, string, number, keyword or "".
export function pieces(code, language) {
  const pattern = PATTERNS.get(language.toLowerCase());
  if (!pattern || code.length > MAX_CHARS) return [{ kind: "", text: code }];
  const found = [];
  let done = 0;
  const push = (kind, end) => {
    if (end > done) found.push({ kind, text: code.slice(done, end) });
    done = end;
  };
  for (const match of code.matchAll(pattern)) {
    const { comment, string, number, word } = match.groups;
    if (word !== undefined && !KEYWORDS.has(word)) continue;
    push("", match.index);
    const kind = comment !== undefined ? "comment" : string !== undefined ? "string" : number !== undefined ? "number" : "keyword";
    push(kind, match.index + match[0].length);
  }
  push("", code.length);
  return found;
}

// The element of a block. info: what stands behind the opening fence.
export function codeBlock(code, info = "") {
  const language = info.trim().split(/\s+/, 1)[0].slice(0, 30);
  const nodes = pieces(code, language).map(({ kind, text }) => (kind ? make("span", { className: kind }, text) : text));
  return make(
    "figure",
    { className: "code" },
    make(
      "div",
      { className: "code-head" },
      make("span", { className: "language" }, language || "text"),
      copyButton(() => code.replace(/\n$/, ""), "Copy this code"),
    ),
    make("pre", { tabIndex: 0 }, make("code", {}, ...nodes)),
  );
}
