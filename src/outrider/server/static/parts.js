// What an answer consists of besides its text: reasoning in <think> marks, and tool calls that stand in the text.

const REASONING = /^\s*<(think|thinking)>/;
const REASONING_END = /^[ \t]*<\/(?:think|thinking)>[ \t]*$/m; // alone on its line, of a template that opened it
const CALL = /^[ \t]*<(tool_call|function_call|tools)>\s*(?=\{)([\s\S]*?)(?:<\/\1>|$(?![\s\S]))/gm;
const FENCE = /^ {0,3}(?:```|~~~)/gm;

// Tells whether a place of a text is inside a fenced block of code. Places must be asked about in their order.
function fences(text) {
  const found = text.matchAll(FENCE);
  let next = found.next();
  let inside = false;
  return (at) => {
    for (; !next.done && next.value.index < at; next = found.next()) inside = !inside;
    return inside;
  };
}

// The parts of an answer in their order: {kind: "text", "reasoning" or "call", text, open}. `open` means that the
// part's end has not come yet.
export function parts(text) {
  const found = [];
  let rest = text;
  const opening = REASONING.exec(text);
  if (opening) {
    const mark = `</${opening[1]}>`;
    const from = opening[0].length;
    const end = text.indexOf(mark, from);
    found.push({ kind: "reasoning", text: text.slice(from, end < 0 ? undefined : end).trim(), open: end < 0 });
    rest = end < 0 ? "" : text.slice(end + mark.length);
  } else {
    const ending = REASONING_END.exec(text);
    if (ending && !fences(text)(ending.index)) {
      found.push({ kind: "reasoning", text: text.slice(0, ending.index).trim(), open: false });
      rest = text.slice(ending.index + ending[0].length);
    }
  }
  return [...found.filter((part) => part.text || part.open), ...withCalls(rest)];
}

function withCalls(text) {
  const found = [];
  const fenced = fences(text);
  let done = 0;
  const plain = (end) => {
    const between = text.slice(done, end);
    if (between.trim()) found.push({ kind: "text", text: between, open: false });
  };
  for (const match of text.matchAll(CALL)) {
    if (fenced(match.index)) continue;
    plain(match.index);
    found.push({ kind: "call", text: match[2].trim(), open: !match[0].endsWith(`</${match[1]}>`) });
    done = match.index + match[0].length;
  }
  plain(text.length);
  return found;
}

// What is written above a tool call: its name, if the JSON has one.
export function callName(text) {
  return /"name"\s*:\s*"([^"\\]{1,80})"/.exec(text)?.[1] ?? "";
}

// JSON set with line breaks; a text that is not JSON stays as it is.
export function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
