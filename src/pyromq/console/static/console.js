// What pages cannot do without a script: fresh parts, the zone of times, colours, keys, and following messages as they come.
// Every page works without it.
"use strict";

const REFRESH_SECONDS = 5;

// --- the zone of times: the server writes and reads times in the zone that the cookie names

const shownZone = document.documentElement.dataset.zone;
const ownZone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const clock = new Intl.DateTimeFormat("sv-SE", { timeStyle: "medium", timeZone: shownZone });
const zoneOfCookie = () => document.cookie.match(/(?:^|; )pyromq-zone=([^;]*)/)?.[1];

function useZone(zone) {
  document.cookie = `pyromq-zone=${zone}; path=/; max-age=31536000; samesite=lax`;
  if (zone !== shownZone && zoneOfCookie() === zone) location.reload();
}

// UTC in the cookie is a choice; another zone is this browser's, which changes when its owner travels.
if (zoneOfCookie() !== "UTC" && zoneOfCookie() !== ownZone) useZone(ownZone);
const zoneSwitch = document.querySelector("[data-zone-switch]");
if (zoneSwitch && ownZone !== "UTC") {
  const other = shownZone === "UTC" ? ownZone : "UTC";
  zoneSwitch.textContent = `Use ${other}`;
  zoneSwitch.hidden = false;
  zoneSwitch.addEventListener("click", () => useZone(other));
}

// --- parts that stay fresh

const offline = document.getElementById("offline");
const served = new Map([...document.querySelectorAll("[data-live][id]")].map((each) => [each.id, each.innerHTML]));

async function refresh() {
  const parts = document.querySelectorAll("[data-live][id]");
  if (!parts.length || document.hidden) return;
  const address = location.href;
  let answer;
  try {
    answer = await fetch(address, { headers: { "x-refresh": "1" }, redirect: "error" });
  } catch {
    offline.textContent = "The console does not answer. What is shown is as of " + clock.format(shownAt) + ".";
    offline.hidden = false;
    return;
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (address !== location.href) return;  // another filter was typed meanwhile
  const error = page.querySelector("section.error .said");
  if (error) {
    offline.textContent = error.textContent + " – what is shown is as of " + clock.format(shownAt) + ".";
    offline.hidden = false;
    return;
  }
  offline.hidden = true;
  shownAt = new Date();
  for (const part of parts) {
    const fresh = page.getElementById(part.id);
    if (!fresh || part.querySelector("details[open], [data-shows]") || fresh.innerHTML === served.get(part.id)) continue;
    const focused = part.contains(document.activeElement) ? document.activeElement.getAttribute("href") : "";
    if (focused === null) continue;  // a button or a field that is in use
    served.set(part.id, fresh.innerHTML);
    part.replaceChildren(...fresh.childNodes);
    if (focused) part.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
  fold();
}

let shownAt = new Date();
setInterval(refresh, REFRESH_SECONDS * 1000);

// --- light, dark, as the system

const THEMES = ["system", "light", "dark"];
const themeSwitch = document.querySelector("[data-theme-switch]");

function showTheme() {
  const theme = document.documentElement.dataset.theme || "system";
  themeSwitch.setAttribute("aria-label", "Colours: " + (theme === "system" ? "as the system" : theme));
  themeSwitch.title = themeSwitch.getAttribute("aria-label");
}

if (themeSwitch) {
  showTheme();
  themeSwitch.addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme || "system";
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // it lasts as long as the page
    }
    showTheme();
  });
}

// --- deleting: the button wakes when the name is typed; others ask once more

for (const form of document.querySelectorAll("form[data-typed]")) {
  const field = form.querySelector("input[name=name]");
  const button = form.querySelector("button");
  const wake = () => { button.disabled = field.value !== form.dataset.typed; };
  field.addEventListener("input", wake);
  wake();
}
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

// --- what a cell cuts off is its title

document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest?.("tbody th, tbody td");
  if (cell && cell.scrollWidth > cell.clientWidth && !cell.querySelector("[title]")) cell.title = cell.innerText;
});

// --- a refused form, wherever it is on its page

document.querySelector("[data-refused]")?.scrollIntoView({ block: "center" });

// --- on narrow screens the menu is a row that is longer than the screen

document.querySelector("nav.side [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// --- a table that is wider than a narrow screen: a row becomes a block, with a line for each cell

const narrow = matchMedia("(max-width: 52rem)");

function fold() {
  for (const table of document.querySelectorAll("main table:not(.messages)")) {
    table.classList.remove("folded");
    const card = table.closest(".scroll, .card") ?? table.parentElement;
    if (!narrow.matches || card.scrollWidth <= card.clientWidth + 1) continue;
    const names = [...table.tHead?.rows[0]?.cells ?? []].map((each) => each.textContent.replace(/[↓↑]/, "").trim());
    table.setAttribute("role", "table");  // blocks are no rows and cells for a screen reader unless they are said to be
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      for (const cell of row.cells) {
        const isHead = cell.closest("thead") !== null;
        cell.setAttribute("role", isHead ? "columnheader" : cell.tagName === "TH" ? "rowheader" : "cell");
        if (!isHead && cell.colSpan === 1) cell.dataset.label = names[cell.cellIndex] ?? "";
      }
    }
    table.classList.add("folded");
  }
}
fold();
addEventListener("resize", fold);

// --- keys, as the dialog of ? lists them

const keysDialog = document.getElementById("keys-dialog");
const keysButton = document.querySelector("[data-keys]");
keysButton.hidden = false;
keysButton.addEventListener("click", () => keysDialog.showModal());

const rowLinks = () => [...document.querySelectorAll("main tbody th[scope=row] a")].filter((each) => each.offsetParent);

function walk(step) {
  const links = rowLinks();
  const at = links.indexOf(document.activeElement.closest("tr")?.querySelector("th[scope=row] a"));
  const next = links[at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step];
  next?.focus();
  return next !== undefined;
}

// The arrows scroll, except on a page of one list, and in a list.
const walksByArrow = () => document.activeElement.closest("main tbody") || document.querySelectorAll("main table").length === 1;

function unfold(isOpen) {
  const button = document.activeElement.closest("tr")?.querySelector("[data-expand]");
  if (button && (button.getAttribute("aria-expanded") === "true") !== isOpen) button.click();
  return Boolean(button);
}

const KEYS = {
  "/": () => { document.getElementById("find").focus(); return true; },
  "?": () => { keysDialog.showModal(); return true; },
  j: () => walk(1),
  k: () => walk(-1),
  ArrowDown: () => walksByArrow() && walk(1),
  ArrowUp: () => walksByArrow() && walk(-1),
  ArrowRight: () => unfold(true),
  ArrowLeft: () => unfold(false),
};
let wentG = false;
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") closePops();
  if (event.ctrlKey || event.metaKey || event.altKey || keysDialog.open) return;
  if (event.key === "ArrowDown" && event.target.id === "filter" && walk(1)) return event.preventDefault();
  if (event.target.closest("input, textarea, select, [tabindex='0']")) return;
  if (wentG) document.querySelector(`nav.side a[data-key="${CSS.escape(event.key)}"]`)?.click();
  else if (Object.hasOwn(KEYS, event.key) && KEYS[event.key]()) event.preventDefault();
  wentG = !wentG && event.key === "g";
});

// --- what pops up closes by Escape and by a click beside it

function closePops(inside = null) {
  for (const each of document.querySelectorAll("details.pop[open]")) if (!inside || !each.contains(inside)) each.open = false;
}
document.addEventListener("click", (event) => closePops(event.target));

// --- names while one types: in the box above, and in fields for a topic

function suggest(input) {
  const list = document.createElement("ul");
  Object.assign(list, { id: `${input.id}-names`, className: "suggestions", hidden: true });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Names");
  input.parentElement.classList.add("suggests");
  input.after(list);
  for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-controls", list.id], ["aria-owns", list.id], ["aria-expanded", "false"]]) input.setAttribute(name, value);
  let chosen = -1, wanted = "", timer = 0;
  const show = (isShown) => { list.hidden = !isShown; input.setAttribute("aria-expanded", String(isShown)); choose(-1); };
  const choose = (number) => {
    chosen = number;
    for (const [place, each] of [...list.children].entries()) each.setAttribute("aria-selected", String(place === number));
    if (number < 0) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", list.children[number].id);
  };
  const take = (option) => {
    if (input.dataset.suggest) {
      input.value = option.dataset.name;
      show(false);
    } else location.href = option.dataset.link;
  };
  const option = (text, note, data) => {
    const item = document.createElement("li");
    item.id = `${list.id}-${list.children.length}`;
    item.setAttribute("role", "option");
    Object.assign(item.dataset, data);
    item.title = text;
    for (const each of [text, note]) item.append(Object.assign(document.createElement("span"), { textContent: each }));
    item.lastElementChild.className = "muted";
    item.addEventListener("mousedown", (event) => { event.preventDefault(); take(item); });
    list.append(item);
  };
  const look = async () => {
    const text = wanted = input.value.trim();
    if (!text) return show(false);
    let found;
    try {
      found = await (await fetch(`/find/names?${new URLSearchParams({ q: text, kind: input.dataset.suggest })}`, { redirect: "error" })).json();
    } catch {
      return show(false);  // the form works without
    }
    if (text !== wanted || document.activeElement !== input) return;
    list.replaceChildren();
    for (const each of found) option(each.name, `${each.kind} ${each.note}`.trim(), each);
    if (!input.dataset.suggest) option(`Messages with “${text}”`, "", { link: `/messages?${new URLSearchParams({ q: text, open: "one" })}` });
    show(list.children.length > 0);
  };
  input.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(look, 120); });
  input.addEventListener("blur", () => show(false));
  input.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const count = list.children.length;
    if (event.key === "Escape" && !list.hidden) show(false);
    else if (list.hidden || !count) return;
    else if (step) choose(chosen < 0 && step < 0 ? count - 1 : (chosen + step + count + 1) % (count + 1) === count ? -1 : chosen + step);
    else if (event.key === "Enter" && chosen >= 0) take(list.children[chosen]);
    else return;
    event.preventDefault();
  });
}
for (const each of document.querySelectorAll("[data-suggest]")) suggest(each);

// --- lists are filtered while one types

for (const form of document.querySelectorAll("form.filter:has(input[name=filter])")) {
  let timer = 0;
  form.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const address = new URL(location.href);
      for (const [name, value] of new FormData(form)) address.searchParams.set(name, value);
      address.searchParams.delete("page");
      history.replaceState(null, "", address);
      refresh();
    }, 250);
  });
}

// --- a message in place, below its row

async function expand(button) {
  const row = button.closest("tr");
  const isOpen = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) {
    row.nextElementSibling.remove();
    return;
  }
  const inside = document.createElement("tr");
  inside.className = "inside";
  const cell = inside.insertCell();
  cell.colSpan = row.cells.length;
  cell.textContent = "…";
  row.after(inside);
  try {
    const answer = await fetch(button.dataset.expand, { redirect: "error" });
    const text = await answer.text();
    if (answer.ok) cell.innerHTML = text;
    else cell.textContent = new DOMParser().parseFromString(text, "text/html").querySelector("section.error .said")?.textContent || "It cannot be shown.";
  } catch {
    cell.textContent = "The console does not answer.";
  }
}
document.addEventListener("click", (event) => {
  const row = event.target.closest("#rows tr");
  if (!row || event.target.closest("a, tr.inside") || !getSelection().isCollapsed) return;
  const button = row.querySelector("[data-expand]");
  if (button) expand(button);
});

// --- the values of a chart at the pointer

document.addEventListener("pointerover", (event) => {
  const chart = event.target.closest?.(".chart");
  const reading = event.target.closest?.(".reading");
  for (const each of document.querySelectorAll(".chart-reading[data-shows]")) {
    if (each.closest(".chart") === chart) continue;
    each.textContent = each.dataset.range;
    delete each.dataset.shows;
  }
  const line = reading && chart.querySelector(".chart-reading");
  if (!line) return;
  line.textContent = reading.querySelector("title").textContent;
  line.dataset.shows = "";
});

// --- copy

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  const text = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = text; }, 1500);
});

// --- a field beside a choice chooses it

for (const each of document.querySelectorAll(".choice")) each.addEventListener("input", () => { each.querySelector("[type=radio]").checked = true; });

// --- forms that are sent when something is chosen

for (const field of document.querySelectorAll("[data-submit]")) field.addEventListener("change", () => field.form.requestSubmit());

// --- a search in progress can be stopped: the server ends what nobody waits for

for (const stop of document.querySelectorAll("[data-stop]")) {
  stop.form.addEventListener("submit", () => { stop.hidden = false; });
  stop.addEventListener("click", () => {
    window.stop();
    stop.hidden = true;
  });
  addEventListener("pageshow", () => { stop.hidden = true; });  // by the browser's way back
}

// --- following a topic: new rows on top

const MOST_ROWS = 500;
for (const button of document.querySelectorAll("[data-tail]")) {
  const state = document.getElementById("tail-state");
  const rows = document.getElementById("rows");
  let source = null;
  let seen = 0;
  const say = (text) => { state.hidden = false; state.textContent = text; };
  button.addEventListener("click", () => {
    const follows = source !== null;
    button.setAttribute("aria-pressed", String(!follows));
    button.textContent = follows ? "Follow" : "Stop";
    if (follows) {
      source.close();
      source = null;
      say(`Stopped after ${seen} new messages.`);
      return;
    }
    say("Following: new messages appear on top.");
    source = new EventSource(button.dataset.tail);
    source.addEventListener("rows", (event) => {
      const { rows: html, more } = JSON.parse(event.data);
      seen += html.length + more;
      rows.querySelector("tr.none")?.remove();
      rows.parentElement.tHead.hidden = false;
      for (const old of rows.querySelectorAll(".fresh")) old.classList.remove("fresh");
      for (const each of html) {
        rows.insertAdjacentHTML("afterbegin", each);
        rows.firstElementChild.classList.add("fresh");
      }
      while (rows.children.length > MOST_ROWS) rows.lastElementChild.remove();
      say(`Following: ${seen} new messages.` + (more ? ` ${more} went by too fast to be shown.` : ""));
    });
    source.addEventListener("trouble", (event) => say(JSON.parse(event.data).text));
    source.addEventListener("error", () => say("The console does not answer; trying again."));
  });
}
