// The page asks the same REST that curl does. What is picked stands in the URL, so that a link can be shared.
"use strict";

const PERIOD_MS = 2000;
const at = id => document.getElementById(id);
const picked = new URLSearchParams(location.hash.slice(1));
let store = picked.get("store") || "default", prefix = picked.get("prefix") || "", cursor = "", following = "", timer = 0, key = picked.get("key") || "";

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

async function get(path, accept) {
  const headers = {}, token = sessionStorage.getItem("token");
  if (token) headers.Authorization = "Bearer " + token;
  if (accept) headers.Accept = accept;
  const answer = await fetch(path, {headers, cache: "no-store"});
  if (answer.ok) return accept ? answer.blob() : answer.json();
  const problem = await answer.json().catch(() => ({detail: answer.statusText}));
  throw new Refused(answer.status, problem.detail);
}

function make(tag, text, name) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (name) e.className = name;
  return e;
}

function row(...cells) {
  const r = make("tr");
  r.append(...cells);
  return r;
}

const number = (v, bad) => make("td", v.toLocaleString("en"), "n" + (bad ? " bad" : ""));

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (bytes >= 1024 && i < units.length - 1) { bytes /= 1024; i++; }
  return (i ? bytes.toFixed(1) : bytes) + " " + units[i];
}

function time(s) {
  if (s < 60) return s.toFixed(1) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + Math.floor(s % 60) + " s";
  return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
}

const base = () => "/v1/stores/" + encodeURIComponent(store);

function fact(name, value) {
  const d = make("div");
  d.append(make("dt", name), make("dd", value));
  return d;
}

function showInfo(info) {
  at("facts").replaceChildren(fact("version", info.version), fact("device", info.device), fact("up", time(info.uptime)),
    fact("clients", info.clients), fact("values", size(info.memory.device)), fact("on their way", size(info.memory.staging)));
}

function showStores(stores) {
  at("stores").replaceChildren(...stores.items.map(s => {
    const name = make("td", undefined, "name"), link = make("a", s.store);
    link.href = "#" + new URLSearchParams({store: s.store});
    name.append(link);
    const r = row(name, make("td", s.type || "not set yet", s.type ? "" : "soft"), number(s.keys), number(s.workers), number(s.dead, s.dead > 0));
    if (s.store === store) r.className = "picked";
    return r;
  }));
}

function showRounds(rounds) {
  const waits = rounds.items.map(r => ["step " + r.step + " of " + r.key, r]).concat(rounds.barriers.map(b => ["barrier " + b.name, b]));
  at("hangs").hidden = waits.length === 0;
  at("rounds").replaceChildren(...waits.slice(0, 12).map(([name, w]) =>
    row(make("td", name, "name"), make("td", time(w.age), "n"), make("td", w.waiting))));
}

function showWorkers(workers) {
  at("workers").replaceChildren(...workers.items.filter(w => w.state !== "left").map(w =>
    row(make("td", w.rank), make("td", w.name, "name"), make("td", w.state, w.state === "dead" ? "bad" : ""), make("td", time(w.seen), "n"))));
  if (!at("workers").childElementCount) {
    const none = make("td", "nobody", "soft");
    none.colSpan = 4;
    at("workers").append(row(none));
  }
}

// A plain link cannot carry the token, so the bytes are fetched and then saved.
function valueLink(key, form, accept) {
  const link = make("a", form);
  link.href = base() + "/keys/" + encodeURIComponent(key.key) + "/value?format=" + form;
  link.addEventListener("click", async event => {
    if (!sessionStorage.getItem("token")) return;
    event.preventDefault();
    const save = make("a");
    try {
      save.href = URL.createObjectURL(await get(link.href, accept));
    } catch (e) {
      return say(e.message, true);
    }
    save.download = key.key.replaceAll("/", "_") + "." + form;
    save.click();
    URL.revokeObjectURL(save.href);
  });
  return link;
}

// ---- a key ---------------------------------------------------------------------------------------------------------

const address = () => "#" + new URLSearchParams({store, ...(prefix && {prefix}), ...(key && {key})});

const measured = v => make("td", v === null ? "-" : Number(v.toPrecision(4)).toString(), "n");

// How many elements there are of each size, by powers of two, from the smallest that there is to the largest.
function bars(histogram) {
  const counts = histogram.counts, first = counts.findIndex(c => c > 0), last = counts.findLastIndex(c => c > 0);
  const most = Math.max(...counts), space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
  if (first < 0) return make("span", "-", "soft");
  const width = 6 * (last - first + 1), power = i => "2^" + (histogram.least_exponent + i);
  svg.setAttribute("class", "bars");
  svg.setAttribute("width", Math.max(width, 72));
  svg.setAttribute("height", 40);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", "sizes from " + power(first - 1) + " to " + power(last));
  for (let i = first; i <= last; i++) {
    const high = counts[i] ? Math.max(1, 26 * counts[i] / most) : 0, r = document.createElementNS(space, "rect"), tip = document.createElementNS(space, "title");
    for (const [name, v] of Object.entries({x: 6 * (i - first), y: 26 - high, width: 5, height: high})) r.setAttribute(name, v);
    tip.textContent = counts[i].toLocaleString("en") + " from " + (i ? power(i - 1) : "0") + " to " + (i + 1 < counts.length ? power(i) : "infinity");
    r.append(tip);
    svg.append(r);
  }
  for (const [x, text, anchor] of [[0, power(first - 1), "start"], [Math.max(width, 72), power(last), "end"]]) {
    const label = document.createElementNS(space, "text");
    label.setAttribute("x", x);
    label.setAttribute("y", 38);
    label.setAttribute("text-anchor", anchor);
    label.textContent = text;
    svg.append(label);
  }
  return svg;
}

function showStats(told) {
  const known = (name, v) => fact(name, v === null ? "not known" : Number(v.toPrecision(4)).toString());
  at("chosen").hidden = !told;
  if (!told) return;
  at("key").textContent = told.key;
  at("measured").replaceChildren(fact("version", told.version), fact("dtype", told.dtype), known("update by value", told.update_ratio),
    known("staleness of the last push", told.staleness), known("slowest worker behind", told.behind));
  at("soon").hidden = told.gradient !== null;
  at("stats").replaceChildren(...["value", "gradient", "update"].filter(part => told[part]).map(part => {
    const s = told[part], sizes = make("td");
    sizes.append(bars(s.histogram));
    return row(make("td", part), number(s.version), measured(s.norm), measured(s.mean), measured(s.min), measured(s.max),
      number(s.nans, s.nans > 0), number(s.infinities, s.infinities > 0), number(s.zeros), sizes);
  }));
}

// One that has gone meanwhile is no reason to show nothing else.
async function lookAtKey() {
  if (!key) return null;
  return get(base() + "/keys/" + encodeURIComponent(key) + "/stats").catch(e => {
    if (e.status === 404) return null;
    throw e;
  });
}

function showNetworks(networks) {
  at("drawn").hidden = networks.items.length === 0;
  at("networks").replaceChildren(...networks.items.map(n => {
    const link = make("a", n.name);
    link.href = "/networks/" + encodeURIComponent(n.name) + "#" + new URLSearchParams({store});
    return link;
  }));
}

function showKeys(keys) {
  following = keys.next_cursor || "";
  at("count").textContent = keys.total.toLocaleString("en");
  at("next").disabled = !following;
  at("first").disabled = !cursor;
  at("empty").hidden = keys.total > 0 || prefix !== "";
  at("keys").replaceChildren(...keys.items.map(k => {
    const value = make("td");
    value.append(valueLink(k, "json", "application/json"), valueLink(k, "npy", "application/x-npy"));
    const name = make("td", undefined, "name"), link = make("a", k.key);
    link.href = "#" + new URLSearchParams({store, ...(prefix && {prefix}), key: k.key});
    name.append(link);
    return row(name, make("td", k.dtype), make("td", k.shape.length ? k.shape.join(" × ") : "scalar"),
      number(k.version), number(k.updates), make("td", size(k.bytes), "n"), value);
  }));
}

function say(text, bad) {
  at("state").textContent = text;
  at("state").className = bad ? "state bad" : "state";
  at("dot").className = bad ? "dot bad" : "dot good";
}

async function look() {
  clearTimeout(timer);
  const query = new URLSearchParams({limit: 50});
  if (prefix) query.set("prefix", prefix);
  if (cursor) query.set("cursor", cursor);
  try {
    const [info, stores, networks] = await Promise.all([get("/v1/info"), get("/v1/stores"), get("/v1/networks")]);
    at("token").hidden = true;
    showInfo(info);
    showStores(stores);
    showNetworks(networks);
    const [keys, workers, rounds, stats] = await Promise.all([get(base() + "/keys?" + query), get(base() + "/workers"), get(base() + "/rounds"), lookAtKey()]);
    showStats(stats);
    showKeys(keys);
    showWorkers(workers);
    showRounds(rounds);
    say("", false);
  } catch (e) {
    if (e.status === 401) at("token").hidden = false;
    say(e.status === 401 ? "no token, or a wrong one" : e instanceof Refused ? e.message : "no answer; trying again", true);
  }
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(look, PERIOD_MS);
}

function pick(name, start, one) {
  store = name;
  prefix = start;
  key = one;
  cursor = "";
  at("prefix").value = prefix;
  for (const e of document.querySelectorAll(".of")) e.textContent = store;
  at("example").textContent = "curl -X PUT --json '{\"data\": [1, 2, 3]}' " + location.origin + base() + "/keys/w";
  look();
}

at("prefix").addEventListener("input", () => {
  prefix = at("prefix").value;
  history.replaceState(null, "", address());
  cursor = "";
  look();
});
at("unchoose").addEventListener("click", () => {
  key = "";
  history.replaceState(null, "", address());
  showStats(null);
});
at("next").addEventListener("click", () => { cursor = following; look(); });
at("first").addEventListener("click", () => { cursor = ""; look(); });
at("token").addEventListener("submit", event => {
  event.preventDefault();
  sessionStorage.setItem("token", at("secret").value);
  at("secret").value = "";
  look();
});
window.addEventListener("hashchange", () => {
  const now = new URLSearchParams(location.hash.slice(1));
  pick(now.get("store") || "default", now.get("prefix") || "", now.get("key") || "");
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
pick(store, prefix, key);
