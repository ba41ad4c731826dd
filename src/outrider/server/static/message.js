// One message on the page: rendered as Markdown, or token by token with marks; with actions and an editor.

import { codeBlock } from "./code.js";
import { button, copyButton, make } from "./dom.js";
import { Rendered } from "./markdown.js";
import { callName, parts, pretty } from "./parts.js";
import { showTraced } from "./tokens.js";

const WHO = { user: "You", system: "System", developer: "System", tool: "Tool result", function: "Tool result" };

export class MessageView {
  // name: of the model. actions: {edit, regenerate, goOn, remove}, called with this view.
  constructor(message, name, actions) {
    this.message = message;
    this.actions = actions;
    this.isAnswer = message.role === "assistant";
    const who = WHO[message.role] ?? message.model ?? name;
    this.tokens = make("div", { className: "tokens" });
    this.rendered = make("div", { className: "rendered" });
    this.note = make("p", { className: "note" }, message.note ?? "");
    this.buttons = make("div", { className: "actions", role: "group", ariaLabel: "Actions on this message" });
    if (this.isAnswer) {
      Object.assign(this.tokens, { tabIndex: 0, role: "group" });
      this.tokens.ariaLabel = "Answer; left and right arrow keys go through its tokens";
    }
    this.body = make("div", { className: "body" }, ...(this.isAnswer ? [this.rendered] : []), this.tokens);
    this.element = make(
      "article",
      { className: `message ${message.role === "assistant" ? "assistant" : message.role === "user" ? "user" : "other"}` },
      make("h3", {}, who),
      this.body,
      this.note,
      this.buttons,
    );
    this.blocks = []; // {kind, update}
  }

  // Show the message as it is now. marks: token by token.
  show(marks) {
    const { message } = this;
    if (!this.isAnswer) {
      this.tokens.textContent = message.content;
      return;
    }
    this.rendered.hidden = marks;
    this.tokens.hidden = !marks;
    if (marks) showTraced(this.tokens, message.written ?? message.content, message.trace);
    else this.renderText(message.content, message.reasoning, message.tool_calls);
  }

  // Render a text that may still grow.
  renderText(text, reasoning = "", calls = []) {
    const wanted = [
      ...(reasoning ? [{ kind: "reasoning", text: reasoning, open: !text }] : []),
      ...parts(text),
      ...calls.filter(Boolean).map(({ function: { name, arguments: text } }) => ({ kind: "call", name, text })),
    ];
    wanted.forEach((part, i) => {
      if (this.blocks[i]?.kind !== part.kind) {
        for (const { element } of this.blocks.splice(i)) element.remove();
        this.blocks.push(block(part.kind));
        this.rendered.append(this.blocks[i].element);
      }
      this.blocks[i].update(part);
    });
    for (const { element } of this.blocks.splice(wanted.length)) element.remove();
  }

  // Put the buttons there. last: whether this is the last message; goesOn: whether it can be continued.
  act({ last, goesOn, busy }) {
    const { actions, message } = this;
    const made = [copyButton(() => message.content, "Copy this message")];
    const add = (text, action, label) =>
      made.push(button(text, () => action(this), { className: "small", ariaLabel: label, disabled: busy }));
    if (message.role !== "tool") add("Edit", actions.edit, "Edit this message");
    if (this.isAnswer) add("Regenerate", actions.regenerate, "Regenerate this answer");
    else if (last) add("Answer", actions.regenerate, "Answer this message");
    if (goesOn) add("Continue", actions.goOn, "Continue this answer");
    add("Delete", actions.remove, "Delete this message and all after it");
    const at = [...this.buttons.children].indexOf(document.activeElement);
    this.buttons.replaceChildren(...made);
    if (at >= 0) made[Math.min(at, made.length - 1)].focus();
  }

  busy(is) {
    this.element.setAttribute("aria-busy", String(is));
    this.element.classList.toggle("busy", is);
  }

  // Replace the message by an editor. save: called with the new text; close: when the editor is gone; ready: whether
  // the text may be saved now.
  edit(label, save, close, ready) {
    const field = make("textarea", { value: this.message.content, ariaLabel: "The message's text" });
    const end = () => {
      form.remove();
      this.body.hidden = this.buttons.hidden = false;
      close();
    };
    const form = make(
      "form",
      { className: "editor" },
      field,
      make("div", { className: "buttons" }, make("button", { type: "submit", className: "main" }, label), button("Cancel", end)),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const text = field.value;
      if (!text.trim() || !ready()) return;
      end();
      save(text);
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.preventDefault();
        event.stopPropagation(); // it must not stop an answer as well
        end();
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.body.hidden = this.buttons.hidden = true;
    this.body.after(form);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

// The element of a part, and how to show what it holds now.
function block(kind) {
  if (kind === "text") {
    const element = make("div", { className: "markdown" });
    const rendered = new Rendered(element);
    return { kind, element, update: ({ text }) => rendered.update(text) };
  }
  const summary = make("summary");
  const inside = make("div", { className: "markdown" });
  const element = make("details", { className: `folded ${kind}` }, summary, inside);
  if (kind === "reasoning") {
    const rendered = new Rendered(inside);
    const update = ({ text, open }) => {
      const count = text.split(/\s+/).filter(Boolean).length;
      summary.textContent = open ? "Reasoning…" : `Reasoning, ${count} ${count === 1 ? "word" : "words"}`;
      rendered.update(text);
    };
    return { kind, element, update };
  }
  let shown = null;
  const update = ({ text, name = callName(text) }) => {
    summary.textContent = name ? `Tool call: ${name}` : "Tool call";
    if (text !== shown) inside.replaceChildren(codeBlock(pretty(text), "json"));
    shown = text;
  };
  return { kind, element, update };
}
