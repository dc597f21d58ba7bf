// A network and what the store makes of it. What is picked stands in the URL, so that a link can be shared.
"use strict";

const PERIOD_MS = 2000, ZOOM = 1.25;
const at = id => document.getElementById(id);
const name = decodeURIComponent(location.pathname.split("/")[2]);
const picked = new URLSearchParams(location.hash.slice(1));
const open = new Set((picked.get("expand") || "").split(",").filter(Boolean));
let zoom = 0, tag = "", shown = "", timer = 0;         // zoom 0: fit when the drawing comes

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function ask(path, headers) {
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = "Bearer " + token;
  const answer = await fetch(path, {headers, cache: "no-store"});
  if (answer.ok || answer.status === 304) return answer;
  const problem = await answer.json().catch(() => ({detail: answer.statusText}));
  throw new Refused(answer.status, problem.detail);
}

const svg = () => at("sheet").querySelector("svg");
const boxes = () => [...at("sheet").querySelectorAll("g.b[id]")];

// ---- size ----------------------------------------------------------------------------------------------------------

function natural() {
  const [, , width, height] = svg().getAttribute("viewBox").split(" ").map(Number);
  return {width, height};
}

// Grows around a point of the window, which stays where it is.
function setZoom(z, x, y) {
  const sheet = at("sheet"), box = sheet.getBoundingClientRect(), before = zoom || 1;
  if (!svg()) return;
  zoom = Math.min(8, Math.max(.02, z));
  const dx = (x === undefined ? box.width / 2 : x - box.left), dy = (y === undefined ? box.height / 2 : y - box.top);
  const left = (sheet.scrollLeft + dx) / before, top = (sheet.scrollTop + dy) / before, {width, height} = natural();
  svg().setAttribute("width", width * zoom);
  svg().setAttribute("height", height * zoom);
  sheet.scrollLeft = left * zoom - dx;
  sheet.scrollTop = top * zoom - dy;
}

// The width fits, and what is small is not blown up: long networks are read by scrolling.
function fit(whole) {
  const box = at("sheet").getBoundingClientRect(), {width, height} = natural();
  const wide = (box.width - 20) / width, high = (box.height - 20) / height;
  zoom = 0;
  setZoom(Math.min(1, whole ? Math.min(wide, high) : Math.max(wide, .3)));
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function query() {
  const q = new URLSearchParams({style: "none", view: at("view").value, color: at("color").value});
  if (at("store").value) q.set("store", at("store").value);
  if (open.size) q.set("expand", [...open].join(","));
  return q.toString();
}

function remember() {
  const h = new URLSearchParams();
  for (const id of ["view", "color", "store"])
    if (at(id).selectedIndex > 0) h.set(id, at(id).value);
  if (open.size) h.set("expand", [...open].join(","));
  if (at("search").value) h.set("find", at("search").value);
  history.replaceState(null, "", "#" + h);
}

// The legend stays in sight, however long the network is.
function showScale() {
  const legend = svg().querySelector(".legend");
  at("scale").replaceChildren();
  if (!legend) return;
  const scale = svg().cloneNode(false); // with its classes, of which the colours are
  scale.append(legend);
  at("scale").append(scale);
  legend.removeAttribute("transform");
  const {x, y, width, height} = legend.getBBox();
  scale.setAttribute("viewBox", [x - 1, y - 1, width + 2, height + 2].join(" "));
  scale.setAttribute("width", width + 2);
  scale.setAttribute("height", height + 2);
}

function show(text) {
  const drawing = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  const first = !svg();
  at("sheet").replaceChildren(document.importNode(drawing, true));
  showScale();
  for (const b of boxes())
    if (b.dataset.key || b.classList.contains("group")) b.setAttribute("tabindex", "0");
  if (first || !zoom) fit(false);
  else setZoom(zoom);
  const top = mark();
  if (first && top) top.scrollIntoView({block: "center", inline: "center"});
}

// Names and operators that have the word in them.
function mark() {
  const word = at("search").value.trim().toLowerCase();
  let count = 0, top = null;
  for (const b of boxes()) {
    const keys = [...b.querySelectorAll("[data-key]")].map(k => k.dataset.key).join("\n");
    const hit = word !== "" && (b.dataset.name + "\n" + (b.dataset.op || "") + "\n" + keys).toLowerCase().includes(word);
    b.classList.toggle("hit", hit);
    if (hit && !count++) top = b;
  }
  at("sheet").classList.toggle("searched", word !== "");
  at("found").textContent = word ? count + " found" : "";
  return top;
}

function say(text, bad) {
  at("state").textContent = text;
  at("state").className = bad ? "state bad" : "state";
  at("dot").className = bad ? "dot bad" : "dot good";
}

async function listStores() {
  const stores = await (await ask("/v1/stores", {})).json(), had = at("store").value || picked.get("store");
  const names = stores.items.map(s => s.store);
  if (names.join("\n") === [...at("store").options].map(o => o.value).join("\n")) return;
  at("store").replaceChildren(...names.map(n => new Option(n, n, false, n === had)));
}

async function look() {
  clearTimeout(timer);
  try {
    await listStores();
    const path = "/v1/networks/" + encodeURIComponent(name) + "/graph?" + query();
    const answer = await ask(path, path === shown ? {"If-None-Match": tag} : {});
    at("token").hidden = true;
    if (answer.status !== 304) {
      tag = answer.headers.get("ETag") || "";
      shown = path;
      show(await answer.text());
    }
    say("", false);
  } catch (e) {
    if (e.status === 401) at("token").hidden = false;
    say(e.status === 401 ? "no token, or a wrong one" : e instanceof Refused ? e.message : "no answer; trying again", true);
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, PERIOD_MS);
}

function changed(refit) {
  if (refit) zoom = 0;
  at("collapse").disabled = open.size === 0;
  remember();
  look();
}

// ---- hands ---------------------------------------------------------------------------------------------------------

function activate(target) {
  const key = target.closest("[data-key]"), box = target.closest("g.b[id]");
  if (key) location.href = "/#" + new URLSearchParams({store: at("store").value || "default", prefix: key.dataset.key, key: key.dataset.key});
  else if (box && box.classList.contains("group")) {
    open.add(box.id);
    changed(false);
  }
}

let held = null;
at("sheet").addEventListener("pointerdown", e => {
  if (e.button === 0) held = {x: e.clientX, y: e.clientY, left: at("sheet").scrollLeft, top: at("sheet").scrollTop, moved: false};
});
window.addEventListener("pointermove", e => {
  if (!held) return;
  held.moved = held.moved || Math.hypot(e.clientX - held.x, e.clientY - held.y) > 4;
  if (!held.moved) return;
  at("sheet").classList.add("held");
  at("sheet").scrollLeft = held.left - (e.clientX - held.x);
  at("sheet").scrollTop = held.top - (e.clientY - held.y);
});
window.addEventListener("pointerup", e => {
  if (held && !held.moved && at("sheet").contains(e.target)) activate(e.target);
  held = null;
  at("sheet").classList.remove("held");
});
at("sheet").addEventListener("wheel", e => {
  if (!e.ctrlKey) return;
  e.preventDefault();
  setZoom(zoom * (e.deltaY < 0 ? ZOOM : 1 / ZOOM), e.clientX, e.clientY);
}, {passive: false});
at("sheet").addEventListener("keydown", e => {
  if (e.key === "Enter") activate(e.target);
  else if (e.key === "+") setZoom(zoom * ZOOM);
  else if (e.key === "-") setZoom(zoom / ZOOM);
  else if (e.key === "0") fit(true);
});
at("closer").addEventListener("click", () => setZoom(zoom * ZOOM));
at("farther").addEventListener("click", () => setZoom(zoom / ZOOM));
at("fit").addEventListener("click", () => svg() && fit(true));
at("collapse").addEventListener("click", () => { open.clear(); changed(false); });
at("view").addEventListener("change", () => { open.clear(); changed(true); });
at("color").addEventListener("change", () => changed(false));
at("store").addEventListener("change", () => changed(false));
at("search").addEventListener("input", () => {
  const top = mark();
  if (top) top.scrollIntoView({block: "center", inline: "center"});
  remember();
});
at("token").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", at("secret").value);
  at("secret").value = "";
  look();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });

document.title = name + " - paramd";
at("name").textContent = name;
for (const id of ["view", "color"])
  if ([...at(id).options].some(o => o.value === picked.get(id))) at(id).value = picked.get(id);
at("search").value = picked.get("find") || "";
at("collapse").disabled = open.size === 0;
look();
