// Markdown as DOM nodes. markdown-it parses, and elements are made here one by one from a short list; HTML in the
// text stays text, links lead to http and https only, and images become links, so that nothing is ever loaded.

import "./vendor/markdown-it.min.js";
import { codeBlock } from "./code.js";
import { make } from "./dom.js";

const MAX_CHARS = 200_000; // longer texts are shown as they are
const MAX_NESTING = 90; // markdown-it leaves out what is nested deeper than 100
const FIRST_HEADING = 4; // the page itself uses h1 to h3

const parser = globalThis.markdownit({ html: false, linkify: true, breaks: false, typographer: false });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });

const SIMPLE = {
  paragraph_open: "p",
  bullet_list_open: "ul",
  list_item_open: "li",
  blockquote_open: "blockquote",
  table_open: "table",
  thead_open: "thead",
  tbody_open: "tbody",
  tr_open: "tr",
  em_open: "em",
  strong_open: "strong",
  s_open: "s",
};

// A link's address when it is one of http or https with a host of its own, else null.
export function safeAddress(text) {
  try {
    const { protocol, href } = new URL(text);
    return protocol === "http:" || protocol === "https:" ? href : null;
  } catch {
    return null;
  }
}

function link(address) {
  const href = safeAddress(address);
  if (href === null) return make("span", { title: address.slice(0, 200) });
  return make("a", { href, title: href.slice(0, 200), target: "_blank", rel: "noopener noreferrer nofollow" });
}

// The element that an opening token stands for.
function opened(token) {
  switch (token.type) {
    case "heading_open":
      return make(`h${Math.min(6, FIRST_HEADING - 1 + Number(token.tag.slice(1)))}`);
    case "ordered_list_open": {
      const start = Number(token.attrGet("start") ?? 1);
      return make("ol", Number.isSafeInteger(start) ? { start } : {});
    }
    case "th_open":
    case "td_open": {
      const side = /^text-align:(left|center|right)$/.exec(token.attrGet("style") ?? "");
      return make(token.type.slice(0, 2), side ? { className: `align-${side[1]}` } : {});
    }
    case "link_open":
      return link(token.attrGet("href") ?? "");
    default:
      return make(SIMPLE[token.type] ?? "span");
  }
}

// The node of a token without a counterpart.
function leaf(token) {
  switch (token.type) {
    case "fence":
    case "code_block":
      return codeBlock(token.content, token.info);
    case "code_inline":
      return make("code", {}, token.content);
    case "softbreak":
      return "\n";
    case "hardbreak":
      return make("br");
    case "hr":
      return make("hr");
    case "image": {
      const found = link(token.attrGet("src") ?? "");
      found.append(`[image: ${token.content || "without a description"}]`);
      return found;
    }
    default:
      return token.content;
  }
}

function build(tokens, into) {
  const stack = [into];
  for (const token of tokens) {
    const top = stack.at(-1);
    if (token.type === "inline") {
      build(token.children, top);
    } else if (token.nesting === 1) {
      if (token.hidden) {
        stack.push(top); // a paragraph of a tight list
        continue;
      }
      const made = opened(token);
      top.append(token.type === "table_open" ? make("div", { className: "scroll" }, made) : made);
      stack.push(made);
    } else if (token.nesting === -1) {
      if (stack.length > 1) stack.pop();
    } else {
      top.append(leaf(token));
    }
  }
}

// The blocks of a text: [{key, tokens}]. Equal keys mean equal nodes. A text that is too long, or nested too deeply,
// is one block {key, plain}.
function blocks(text) {
  if (text.length > MAX_CHARS) return [{ key: `plain\n${text}`, plain: text }];
  const references = {};
  const env = { references };
  const tokens = parser.parse(text, env);
  if (tokens.some(({ level }) => level > MAX_NESTING)) return [{ key: `plain\n${text}`, plain: text }];
  const lines = text.split("\n");
  const known = Object.keys(references).length ? JSON.stringify(references) : "";
  const found = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) {
      const [from, to] = token.map ?? [0, lines.length];
      found.push({ key: `${token.type}\n${known}\n${lines.slice(from, to).join("\n")}`, tokens: [] });
    }
    found.at(-1).tokens.push(token);
    depth += token.nesting;
  }
  return found;
}

// A text that may grow, shown in an element. Blocks that did not change keep their nodes.
export class Rendered {
  constructor(box) {
    this.box = box;
    this.shown = []; // {key, nodes}
  }

  update(text) {
    const next = blocks(text.replace(/\r\n?/g, "\n"));
    let same = 0;
    while (same < Math.min(next.length, this.shown.length) && next[same].key === this.shown[same].key) same += 1;
    for (const { node } of this.shown.splice(same)) node.remove();
    for (const { key, tokens, plain } of next.slice(same)) {
      const node = make("div", { className: plain === undefined ? "block" : "block plain" });
      if (plain === undefined) build(tokens, node);
      else node.append(plain);
      this.box.append(node);
      this.shown.push({ key, node });
    }
  }
}
