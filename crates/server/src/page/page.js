"use strict";
// The page of a Ballast server: a chat, and what the server's memory and lanes do. Text from the model is only ever
// set as text (markdown.js), never as markup.

const $ = (id) => document.getElementById(id);
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// ---- Talking to the server ----

let key = sessionStorage.getItem("key") || "";
let asking = null;

/** Asks for a key, once at a time; for another one, if the last was refused. */
function knock() {
  asking ??= new Promise((entered) => {
    $("asks").textContent = key ? "The server refused that key." : "This server asks for a key.";
    $("door").onclose = () => {
      key = $("key").value.trim();
      $("key").value = "";
      sessionStorage.setItem("key", key);
      asking = null;
      entered();
    };
    $("door").showModal();
  });
  return asking;
}

/** `limit`: milliseconds for an answer, without what it takes to enter a key. */
async function request(path, options = {}, limit = null) {
  for (;;) {
    const headers = { ...options.headers };
    const tried = key;
    if (tried) headers.Authorization = `Bearer ${tried}`;
    const signal = limit ? AbortSignal.timeout(limit) : options.signal;
    const response = await fetch(path, { ...options, headers, signal });
    if (response.status !== 401) return response;
    // Another may have been entered meanwhile.
    if (tried === key) await knock();
  }
}

/** What went wrong, as the server says it. */
async function complaint(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `the server answered ${response.status}`;
}

/** The data of each server-sent event of a response. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (rest + value).split("\n\n");
    rest = pieces.pop();
    for (const piece of pieces) {
      if (piece.startsWith("data: ") && piece !== "data: [DONE]") yield JSON.parse(piece.slice(6));
    }
  }
}

// ---- The chat ----

const DRAW_EVERY_MS = 40;
let messages = [];
let stopper = null;

/** The conversation outlives the page, for as long as its tab is open. */
function keep() {
  try {
    sessionStorage.setItem("chat", JSON.stringify(messages));
  } catch {
    sessionStorage.removeItem("chat"); // No room: a part of it would be another conversation.
  }
}

function settings() {
  const body = {};
  for (const name of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) {
    if ($(name).value !== "") body[name] = Number($(name).value);
  }
  return body;
}

function show(role, text) {
  $("hint")?.remove();
  const turn = make("div", `turn ${role}`, text);
  $("turns").append(turn);
  turn.scrollIntoView({ block: "end" });
  return turn;
}

/** What the model thinks, which can be opened, and what it answers. */
function write(turn, { thought, text }) {
  let details = turn.querySelector(".thought");
  if (thought && !details) {
    details = make("details", "thought");
    details.append(make("summary", "", "Thoughts"), make("div"));
    turn.prepend(details);
  }
  if (thought) details.lastChild.textContent = thought;
  let answer = turn.querySelector(".answer");
  if (!answer) turn.append(answer = make("div", "answer"));
  answer.replaceChildren(...markdown(text));
}

function busy(now) {
  $("send").disabled = now;
  $("stop").hidden = !now;
  // Who pressed a button that is gone goes on writing.
  if (!now && [document.body, $("stop"), $("send")].includes(document.activeElement)) $("text").focus();
  // Who has it read aloud hears an answer once, when it is whole.
  $("turns").setAttribute("aria-busy", String(now));
}

/** Whether the end of the conversation is in sight: who reads further up stays there. */
function atEnd() {
  const turns = $("turns");
  return turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
}

/** Sends the conversation, and writes the answer as it comes. */
async function answer(turn) {
  const chat = messages;
  const system = $("system").value.trim();
  const said = messages.map(({ role, content }) => ({ role, content }));
  const conversation = system ? [{ role: "system", content: system }, ...said] : said;
  const began = performance.now();
  let text = "", thought = "", first = null, tokens = 0, cut = "", drawing = null, drawMs = 0;
  // Drawn some times a second, less often where that takes long: a page that draws every token of a fast stream has no time for
  // anything else.
  const drawText = () => {
    drawing = null;
    if (first === null || chat !== messages) return;
    const follow = atEnd();
    const begun = performance.now();
    write(turn, { thought, text });
    drawMs = performance.now() - begun;
    if (follow) $("turns").scrollTop = $("turns").scrollHeight;
    const seconds = (performance.now() - first) / 1000;
    const rate = tokens > 1 && seconds > 0 ? `${((tokens - 1) / seconds).toFixed(1)} tokens/s, ` : "";
    $("speed").textContent = `${tokens} tokens, ${rate}first after ${((first - began) / 1000).toFixed(2)} s${cut}`;
  };
  try {
    const response = await request("/v1/chat/completions", {
      method: "POST",
      signal: stopper.signal,
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        messages: conversation, stream: true,
        stream_options: { include_usage: true, continuous_usage_stats: true }, ...settings(),
      }),
    });
    if (!response.ok) throw new Error(await complaint(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      const delta = event.choices[0]?.delta;
      const content = delta?.content ?? "", reasoning = delta?.reasoning_content ?? "";
      if (content || reasoning) first ??= performance.now();
      text += content;
      thought += reasoning;
      tokens = event.usage?.completion_tokens ?? tokens;
      if (event.choices[0]?.finish_reason === "length") cut = ", cut: no more tokens allowed";
      drawing ??= setTimeout(drawText, Math.max(DRAW_EVERY_MS, 4 * drawMs));
    }
  } finally {
    clearTimeout(drawing);
    // A conversation that was put away meanwhile is not gone on with.
    if (chat === messages && (text || thought)) messages.push({ role: "assistant", content: text, thought });
    drawText();
  }
}

/** Takes back a message that has no answer: it is to be sent again, or changed. */
function takeBack(turn) {
  const { content } = messages.pop();
  turn.remove();
  $("text").value = [content, $("text").value].filter(Boolean).join("\n");
}

async function ask() {
  const text = $("text").value.trim();
  if (!text || stopper) return;
  $("text").value = "";
  messages.push({ role: "user", content: text });
  const chat = messages, asked = show("user", text);
  const turn = show("assistant going", "");
  stopper = new AbortController();
  busy(true);
  try {
    await answer(turn);
  } catch (error) {
    if (error.name !== "AbortError") show("assistant error", error.message);
  } finally {
    stopper = null;
    busy(false);
    turn.classList.remove("going");
    if (!turn.textContent) turn.remove();
    if (chat === messages && messages.at(-1)?.role === "user") takeBack(asked);
    if (chat === messages) keep();
  }
}

$("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask(); }
});
$("stop").addEventListener("click", () => stopper?.abort());
$("clear").addEventListener("click", () => {
  stopper?.abort();
  messages = [];
  keep();
  $("turns").replaceChildren();
  $("speed").textContent = "";
});

/** What was said before the page was loaded again; nothing, where somebody else has written what is kept. */
function recall() {
  try {
    for (const { role, content, thought } of JSON.parse(sessionStorage.getItem("chat") ?? "[]")) {
      if (role === "user") show(role, content);
      else write(show(role), { thought, text: content });
      messages.push({ role, content, thought });
    }
  } catch {
    messages = [];
    $("turns").replaceChildren();
  }
}

// ---- The hold ----

const NAMES = {
  device: "Device", host: "Host", disk: "Disk", up: "To device", down: "From device",
  disk_read: "Disk reads", disk_write: "Disk writes", peer_in: "From ranks", peer_out: "To ranks",
};

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${n >= 100 || unit === 0 ? n.toFixed(0) : n.toFixed(1)} ${units[unit]}`;
}

function seconds(s) {
  if (s === null || s === undefined) return "–";
  return s < 1 ? `${(s * 1000).toFixed(0)} ms` : `${s.toFixed(1)} s`;
}

/** A tier as a bar: each part as wide as its bytes; what KV has reserved and does not use is paler. */
function tier(data) {
  const element = make("div", "tier");
  const title = make("div", "title");
  title.append(make("span", "", NAMES[data.tier] ?? data.tier),
    make("span", "", data.capacity_bytes ? `${bytes(data.used_bytes)} of ${bytes(data.capacity_bytes)}` : "not in use"));
  const bar = make("div", "bar"), legend = make("div", "legend");
  const add = (className, name, size) => {
    if (size <= 0) return;
    const segment = make("div", className);
    segment.style.width = `${100 * size / data.capacity_bytes}%`;
    bar.append(segment);
    const entry = make("span", "", `${name.replace("_", " ")} ${bytes(size)}`);
    entry.prepend(make("i", className));
    legend.append(entry);
  };
  for (const part of data.parts) {
    add(part.part, part.part, part.used_bytes);
    if (part.part === "kv") add("kv-free", "kv, free", part.reserved_bytes - part.used_bytes);
  }
  element.dataset.tier = data.tier;
  element.append(title, bar, legend);
  return element;
}

/** One column a second, newest right, as high as the value is of `top`. */
function columns(values, top, label) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 60 1");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  values.forEach((value, i) => {
    const height = top > 0 ? Math.min(1, value / top) : 0;
    if (height <= 0) return;
    const rect = document.createElementNS(space, "rect");
    const place = { x: 60 - values.length + i, y: 1 - height, width: 0.9, height };
    for (const [name, at] of Object.entries(place)) rect.setAttribute(name, at);
    svg.append(rect);
  });
  return svg;
}

function lane(data) {
  const mean = data.busy.reduce((sum, share) => sum + share, 0) / Math.max(1, data.busy.length);
  const percent = `${(100 * mean).toFixed(0)} %`;
  const row = make("div", "lane");
  row.dataset.lane = data.lane;
  row.append(make("span", "", NAMES[data.lane] ?? data.lane),
    columns(data.busy, 1, `busy ${percent} of the last minute`), make("span", "", percent));
  return row;
}

function figures(hold) {
  const rate = hold.tokens_per_second.at(-1) ?? 0;
  const rows = [
    ["Running", hold.queue.running], ["Waiting", hold.queue.waiting],
    ["Tokens/s now", rate.toFixed(rate < 10 ? 1 : 0)],
    ["First token, p50", seconds(hold.latency.first_token_s.p50)],
    ["First token, p95", seconds(hold.latency.first_token_s.p95)],
    ["Next token, p50", seconds(hold.latency.next_token_s.p50)],
    ["Next token, p95", seconds(hold.latency.next_token_s.p95)],
  ];
  return rows.map(([name, value]) => {
    const entry = make("div");
    entry.append(make("dt", "", name), make("dd", "", String(value)));
    return entry;
  });
}

function draw(hold) {
  $("model").textContent = hold.model ?? "";
  $("tiers").replaceChildren(...hold.tiers.map(tier));
  const active = hold.lanes.filter((each) => each.lane === "device" || each.used);
  $("lanes").replaceChildren(...active.map(lane));
  $("figures").replaceChildren(...figures(hold));
  const top = Math.max(1, ...hold.tokens_per_second);
  $("rate").replaceChildren(columns(hold.tokens_per_second, top, `tokens per second, up to ${top.toFixed(0)}`));
}

/** The server's state, if it is another than it was: what has it read aloud says it once. */
function tell(state, className) {
  if ($("state").textContent !== state) $("state").textContent = state;
  $("state").className = className;
}

async function look() {
  try {
    // An answer that never comes must not be the last one that is asked for.
    const response = await request("/v1/hold", {}, 10_000);
    if (!response.ok) throw new Error(await complaint(response));
    const hold = await response.json();
    draw(hold);
    tell(hold.state, "");
  } catch (error) {
    const unheard = error instanceof TypeError || error.name === "TimeoutError";
    tell(unheard ? "no connection" : error.message, "bad");
  }
  setTimeout(look, 1000);
}

look();
recall();
