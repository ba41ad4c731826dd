// The server's API: JSON, and streams of server-sent events.

// What went wrong, in words to show. status: of HTTP, or 0 when there was no answer.
export class Failure extends Error {
  constructor(message, status = 0, code = null) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function ask(path, key, init = {}) {
  const headers = { ...init.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  let answer;
  try {
    answer = await fetch(path, { ...init, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TypeError" && key && !isHeader(key)) {
      throw new Failure("The API key holds characters that no key has.");
    }
    throw new Failure("The server does not answer. Is it still running?");
  }
  if (answer.ok) return answer;
  let told = null;
  try {
    told = (await answer.json()).error;
  } catch {
    // not from our server: a proxy, perhaps
  }
  throw new Failure(told?.message ?? `The server answered ${answer.status}.`, answer.status, told?.code);
}

const isHeader = (text) => /^[\x20-\x7e]*$/.test(text);

export async function get(path, key) {
  return (await ask(path, key)).json();
}

// The documents of a streamed answer, one by one.
export async function* stream(path, body, key, signal) {
  const init = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  };
  const answer = await ask(path, key, init);
  try {
    for await (const data of events(answer.body)) {
      if (data === "[DONE]") return;
      const found = JSON.parse(data);
      if (found.error) throw new Failure(found.error.message, 500, found.error.code);
      yield found;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Failure) throw error;
    throw new Failure("The connection to the server broke off.");
  }
  throw new Failure("The answer broke off before its end.");
}

// The data of server-sent events (the part of the format that a POST's answer needs).
export async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (left + value).split(/\r?\n\r?\n/);
      left = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
