// Puts the page together.

import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { closeCovering, openPanel, setUp as setUpLayout, uncover } from "./layout.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { Race } from "./race.js";
import * as settings from "./settings.js";
import { SOURCES, inspect } from "./tokens.js";

const fileOf = (path) => String(path ?? "").split(/[\\/]/).at(-1);

// Show what went wrong, or with null that nothing is wrong now.
function failure(error) {
  const box = byId("failure");
  box.hidden = !error;
  if (!error) return;
  const asks = error.status === 401;
  byId("failure-text").textContent = asks
    ? `${settings.key() ? "This server does not know the API key." : "This server asks for an API key."} Enter it in the settings.`
    : error.message;
  byId("failure-key").hidden = !asks;
}

let lookFailed = false; // whether the message shown is about looking at the server

function status({ model, speculation, engine }) {
  if (lookFailed) failure(null);
  lookFailed = false;
  const [name] = model.names;
  document.title = `${name} – Outrider`;
  chat.name = name;
  byId("model").textContent = name;
  const draft = model.draft ? `, draft model ${fileOf(model.draft)}` : "";
  byId("model").title = `${name}${draft}, speculation: ${speculation.method}`;
  byId("served").textContent = `Speculation: ${speculation.method}${draft}. Context: ${model.max_model_len} tokens.`;
  byId("state").textContent = engine.healthy
    ? `${engine.running} running, ${engine.waiting} waiting`
    : "the engine has failed: start the server again";
  byId("state").dataset.healthy = String(engine.healthy);
  settings.offer(speculation.drafters, (drafter) => SOURCES[drafter] ?? drafter);
  if (!model.has_chat_template) {
    lookFailed = true;
    failure(new Error("This model has no chat template, so it cannot chat. Start the server with --chat-template."));
  }
}

function unseen(error) {
  byId("state").textContent = error.status === 401 ? "an API key is needed" : "no answer";
  byId("state").dataset.healthy = "false";
  if (byId("failure").hidden || lookFailed) {
    lookFailed = true;
    failure(error);
  }
}

const told = (error) => {
  lookFailed = false;
  failure(error);
};
const live = new Live(settings.key, status, unseen);
const busy = (is) => {
  for (const name of ["send", "race-start"]) byId(name).disabled = is;
};
const chat = new Chat({
  live,
  onFailure: told,
  onBusy: busy,
  onSave: (conversation) => list.save(conversation),
  onUndo: (text, back) => list.tell(text, back),
});
const race = new Race(live, told, busy);
const list = new List({
  onOpen: (conversation) => {
    list.tell("");
    chat.open(conversation);
  },
  onFailure: told,
  onShow: uncover,
});
list.forget = (conversation, is) => chat.forget(conversation, is);

settings.setUp({
  onKey: () => {
    failure(null);
    lookFailed = false;
    live.look();
  },
  onChange: () => chat.settled(),
  onShow: () => openPanel("drawer"),
});
list.start();
setUpLayout((marks) => chat.mark(marks));
byId("failure-key").addEventListener("click", () => {
  openPanel("drawer");
  byId("settings").open = true;
  byId("key").focus();
});
inspect(byId("work"), byId("inspector"));

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || closeCovering()) return;
  chat.stop();
  race.stop();
});

live.look();
