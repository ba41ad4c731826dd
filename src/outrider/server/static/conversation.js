// Conversations as data: {id, title, named, created, updated, settings, messages}.
// title: set by the user if `named`, else the beginning of the first message. created, updated: ms since 1970.
// A message: {role, content}, and where there is any: reasoning, tool_calls and tool_call_id as OpenAI's API has them,
// reason (why the answer ended), note, model, written (all that the model wrote, where the server took reasoning or
// tool calls out of `content`) and trace (see tokens.js).

import { DEFAULTS, cleanSettings } from "./request.js";
import { cleanTrace } from "./tokens.js";

const FORMAT = "outrider.conversations";
const ROLES = ["system", "developer", "user", "assistant", "tool", "function"];
const MAX_TITLE = 120;
const MAX_MESSAGES = 5000;
const MAX_CHARS = 2_000_000; // of a message
const MAX_CALLS = 100; // of a message
const MAX_IMPORT = 500; // conversations

export function newConversation(settings = DEFAULTS) {
  const now = Date.now();
  return { id: newId(), title: "", named: false, created: now, updated: now, settings: { ...settings }, messages: [] };
}

function newId() {
  const numbers = crypto.getRandomValues(new Uint32Array(4)); // randomUUID needs https
  return [...numbers].map((number) => number.toString(16).padStart(8, "0")).join("");
}

const isId = (text) => typeof text === "string" && /^[0-9a-f]{32}$/.test(text);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const line = (text, most = MAX_TITLE) => text.replace(/\s+/g, " ").trim().slice(0, most);

// The name to show.
export function titleOf({ title, named, messages }) {
  if (named && title) return title;
  const first = messages.find(({ role }) => role === "user");
  return line(first?.content.slice(0, 500) ?? "", 60) || "New conversation";
}

// A conversation from a value of any kind. Throws an Error that says what is wrong with it.
export function cleanConversation(raw) {
  if (!isObject(raw)) throw new Error("a conversation must be an object");
  if (!Array.isArray(raw.messages)) throw new Error("a conversation needs a list of messages");
  if (raw.messages.length > MAX_MESSAGES) throw new Error(`a conversation has at most ${MAX_MESSAGES} messages`);
  const found = newConversation(cleanSettings(raw.settings));
  found.messages = raw.messages.map(cleanMessage);
  if (found.messages[0]?.role === "system" && !found.settings.system) {
    found.settings.system = found.messages.shift().content;
  }
  if (isId(raw.id)) found.id = raw.id;
  if (typeof raw.title === "string") found.title = line(raw.title);
  found.named = raw.named === true && found.title !== "";
  for (const name of ["created", "updated"]) {
    if (Number.isSafeInteger(raw[name]) && Math.abs(raw[name]) < 8.64e15) found[name] = raw[name];
  }
  return found;
}

function cleanMessage(raw) {
  if (!isObject(raw) || !ROLES.includes(raw.role)) throw new Error(`a message needs a role of ${ROLES.join(", ")}`);
  const found = { role: raw.role, content: contentText(raw.content) };
  for (const name of ["reasoning", "reason", "note", "model", "written", "tool_call_id", "name"]) {
    if (typeof raw[name] === "string" && raw[name].length <= MAX_CHARS) found[name] = raw[name];
  }
  if (Array.isArray(raw.tool_calls) && raw.tool_calls.length) found.tool_calls = raw.tool_calls.slice(0, MAX_CALLS).map(cleanCall);
  const trace = cleanTrace(raw.trace, (found.written ?? found.content).length);
  if (trace) found.trace = trace;
  return found;
}

function cleanCall(raw, i) {
  const { name, arguments: given } = raw?.function ?? {};
  if (typeof name !== "string") throw new Error("a tool call needs function.name");
  return {
    id: typeof raw.id === "string" ? line(raw.id) : `call_${i}`,
    type: "function",
    function: { name: line(name), arguments: typeof given === "string" ? given : JSON.stringify(given ?? {}) },
  };
}

// A message's text: a string, or the text parts of a list.
function contentText(content) {
  if (content === null || content === undefined) return "";
  const parts = Array.isArray(content) ? content.map((part) => part?.text ?? part) : [content];
  if (parts.some((part) => typeof part !== "string")) throw new Error("a message's content must be a text");
  const text = parts.join("");
  if (text.length > MAX_CHARS) throw new Error(`a message has at most ${MAX_CHARS} characters`);
  return text;
}

// The `messages` of a request: the system prompt, and the first `count` messages.
export function requestMessages({ settings, messages }, count = messages.length) {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const sent = messages.slice(0, count).map(({ role, content, tool_calls, tool_call_id, name }) => ({
    role,
    content,
    tool_calls,
    tool_call_id,
    name,
  }));
  return [...system, ...sent];
}

// Whether the last answer can go on where it ended. One that a grammar binds cannot: the grammar would begin anew.
export function canContinue({ settings, messages }) {
  const last = messages.at(-1);
  if (last?.role !== "assistant" || !last.content || last.tool_calls?.length) return false;
  return last.reason !== "stop" && settings.response_format === "text";
}

// --- Files -------------------------------------------------------------------------------------------

export function exportJson(conversations) {
  return `${JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1)}\n`;
}

export function exportMarkdown(conversation) {
  const { settings, messages } = conversation;
  const names = { user: "User", assistant: "Assistant", system: "System", developer: "System" };
  const found = [`# ${titleOf(conversation)}`];
  if (settings.system.trim()) found.push("## System", settings.system.trim());
  for (const message of messages) {
    found.push(`## ${names[message.role] ?? "Tool"}`);
    if (message.reasoning) found.push(`> ${message.reasoning.trim().replaceAll("\n", "\n> ")}`);
    if (message.content.trim()) found.push(message.content.trim());
    for (const { function: call } of message.tool_calls ?? []) {
      found.push(`Tool call of \`${call.name}\`:`, fenced(call.arguments));
    }
  }
  return `${found.join("\n\n")}\n`;
}

// A block of code with a fence that is longer than any in it.
function fenced(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}json\n${text}\n${fence}`;
}

// A name for a conversation's file, of letters and digits in any script.
export function fileName(conversation, ending) {
  const name = titleOf(conversation).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60);
  return `${name || "conversation"}.${ending}`;
}

// The conversations in the text of a file: one of exportJson, or a list of OpenAI's messages, alone or as `messages`
// of an object. All get new ids. Throws an Error that says what is wrong.
export function readImport(text) {
  let raw;
  try {
    raw = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON. Import what was exported as JSON.");
  }
  let found = [raw];
  if (Array.isArray(raw?.conversations)) found = raw.conversations;
  else if (Array.isArray(raw)) found = isObject(raw[0]) && "role" in raw[0] ? [{ messages: raw }] : raw;
  if (!found.length) throw new Error("The file holds no conversation.");
  if (found.length > MAX_IMPORT) throw new Error(`The file holds ${found.length} conversations; at most ${MAX_IMPORT} are read.`);
  return found.map((part, i) => {
    try {
      return { ...cleanConversation(part), id: newId() };
    } catch (error) {
      throw new Error(`Conversation ${i + 1} of the file cannot be read: ${error.message}.`);
    }
  });
}
