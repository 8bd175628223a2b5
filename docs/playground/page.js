// SPDX-License-Identifier: MIT-0
// page - what all four views share: elements, numbers as text, settings with their fields, the link.
'use strict';

// ---- elements ----

const $ = (id) => document.getElementById(id);

function make(where, tag, attributes, children) {
  const e = where(tag);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k.startsWith('on')) { e.addEventListener(k.slice(2), v); }
    else if (k.startsWith('aria-')) { e.setAttribute(k, v); }
    else if (v === true) { e.setAttribute(k, ''); }
    else if (v !== false && v !== null && v !== undefined) { e.setAttribute(k, v); }
  }
  for (const c of children) { if (c !== null && c !== undefined) { e.append(c); } }
  return e;
}
const el = (tag, a, ...c) => make((t) => document.createElement(t), tag, a, c);
const svg = (tag, a, ...c) =>
  make((t) => document.createElementNS('http://www.w3.org/2000/svg', t), tag, a, c);
const fill = (id, ...c) => $(id).replaceChildren(...c.filter((x) => x !== null && x !== undefined));

// A number that a test can read in full.
const value = (name, x, shown) => el('span', {'data-name': name, 'data-value': String(x)}, shown);

// ---- numbers as text ----

function digits(x, n) { // n significant digits, never an exponent
  if (x === 0 || !isFinite(x)) { return String(x); }
  const places = Math.max(0, n - 1 - Math.floor(Math.log10(Math.abs(x)) + 1e-9));
  return Number(x.toFixed(Math.min(places, 12))).toLocaleString('en-US',
    {minimumFractionDigits: places > 12 ? 0 : Math.min(places, n), maximumFractionDigits: 12});
}
function scaled(x, units, n) {
  let i = 0;
  while (i + 1 < units.length && Math.abs(x) >= 999.5) { x /= 1000; i++; }
  return [digits(x, n || 3), units[i]];
}
const count = (x) => x.toLocaleString('en-US');
const many = (x, one, more) => count(x) + ' ' + (x === 1 ? one : more || one + 's');
const bytes = (x) => scaled(x, ['B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB']).join('\u00a0').replace('.00\u00a0B', '\u00a0B').replace('.0\u00a0B', '\u00a0B');
const gb = (x) => (x * 1e-9).toFixed(1) + '\u00a0GB';
const seconds = (x) => x >= 1 || x === 0 ? digits(x, 3) + '\u00a0s' : x >= 1e-3
  ? digits(x * 1e3, 3) + '\u00a0ms' : digits(x * 1e6, 3) + '\u00a0µs';
const percent = (x, places) => (100 * x).toFixed(places === undefined ? 1 : places) + '\u00a0%';
const short = (x) => scaled(x, ['', 'k', 'M', 'G', 'T', 'P']).join('');
const plain = (x) => Number(x.toFixed(4)).toLocaleString('en-US', {maximumFractionDigits: 4});

const colour = (name) => 'var(--' + name + ')';
const seen = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

// A colour for a rank or a node: seven hues, then the same mixed with grey.
const hues = ['blue', 'orange', 'green', 'pink', 'sky', 'red', 'yellow'];
function hue(i, share) {
  const round = Math.floor(i / hues.length) % 3;
  const base = 'var(--' + hues[i % hues.length] + ')';
  const mixed = round === 0 ? base : 'color-mix(in srgb, ' + base + ' ' + (round === 1 ? 62 : 38) + '%, var(--grey))';
  return 'color-mix(in srgb, ' + mixed + ' ' + Math.round(100 * share) + '%, var(--sheet))';
}

// What a reader is told: after a pause, so that dragging says it once.
let telling = 0;
function announce(sentence) {
  clearTimeout(telling);
  telling = setTimeout(() => { $('live').textContent = sentence; }, 600);
}

function key(colourOf, name) {
  return el('span', {class: 'key'}, el('i', {style: 'background:' + colourOf, 'aria-hidden': 'true'}), name);
}

// Parts of a whole as a bar; its label says them.
function bar(parts, most, label, limit) {
  const b = el('div', {class: 'bar', role: 'img', 'aria-label': label, title: label});
  for (const p of parts) {
    if (p.size > 0) { b.append(el('i', {style: 'width:' + 100 * p.size / most + '%;background:' + p.colour})); }
  }
  if (limit) { b.append(el('span', {class: 'limit', style: 'left:calc(' + Math.min(100, 100 * limit / most) + '% - 2px)'})); }
  return b;
}

function figure(name, shown, rest) { return el('div', {}, el('dt', {}, name), el('dd', {}, shown, rest ? el('small', {}, rest) : null)); }

// ---- one item of a group has the focus; arrow keys move it ----

function roving(items, across, choose) {
  const at = () => Math.max(0, items.findIndex((i) => i.getAttribute('tabindex') === '0'));
  const move = (k) => {
    if (k < 0 || k >= items.length) { return; }
    items.forEach((i, n) => i.setAttribute('tabindex', n === k ? '0' : '-1'));
    items[k].focus();
    choose(k);
  };
  items.forEach((item, k) => {
    item.addEventListener('keydown', (e) => {
      const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across}[e.key];
      if (step) { e.preventDefault(); move(at() + step); }
      if (e.key === 'Home') { e.preventDefault(); move(0); }
      if (e.key === 'End') { e.preventDefault(); move(items.length - 1); }
      if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); choose(k); }
    });
    item.addEventListener('click', () => move(k));
  });
}

// ---- questions ----

const pending = new Map();
let asking = null, lastId = 0, onProgress = () => {};

function hear(m) {
  const p = pending.get(m.id);
  if (!p) { return; }
  if (m.result !== undefined || m.ended) {
    pending.delete(m.id);
    p(m.ended ? null : m.result);
  } else {
    onProgress(m);
  }
}

function ask(kind, more) {
  const q = Object.assign({id: ++lastId, kind: kind}, more);
  return new Promise((done) => { pending.set(q.id, done); asking(q); });
}

// One question of a kind is under way; of those that come meanwhile the last is asked.
function latestOnly(run) {
  let busy = false, again = null;
  return async function next(arg) {
    if (busy) { again = [arg]; return; }
    busy = true;
    try { await run(arg); } finally {
      busy = false;
      if (again) { const a = again[0]; again = null; next(a); }
    }
  };
}

async function startEngine() {
  const zipped = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([zipped]).stream().pipeThrough(new DecompressionStream('gzip'));
  const module = await new Response(stream).arrayBuffer();
  const inPage = () => { const q = engine(module, hear); asking = q; };
  try {
    const text = engine.toString() + ';let q=null;onmessage=(e)=>{' +
      'if(q){q(e.data)}else{q=engine(e.data,(m)=>postMessage(m))}};';
    const worker = new Worker(URL.createObjectURL(new Blob([text], {type: 'text/javascript'})));
    worker.onmessage = (e) => hear(e.data);
    worker.postMessage(module);
    asking = (q) => worker.postMessage(q);
  } catch (refused) { // no workers here: in the page, in pieces
    inPage();
  }
}

// ---- settings: a view has a list of them; what is not the default stands in the link ----

const views = {}; // name: {settings, state, show(state), ...}
let view = 'plan', known = null;

function defaults(name) {
  const state = {};
  for (const s of views[name].settings) { state[s.key] = s.first; }
  return state;
}

function link() {
  const words = [view];
  for (const s of views[view].settings) {
    const v = views[view].state[s.key];
    if (String(v) !== String(s.first)) {
      words.push(s.key + '=' + encodeURIComponent(v).replace(/%(2C|3A|3D|2B)/g, decodeURIComponent));
    }
  }
  return '#' + words.join('&');
}

function readLink() {
  const words = location.hash.slice(1).split('&');
  const name = views[words[0]] ? words[0] : 'plan';
  const state = defaults(name);
  for (const w of words.slice(1)) {
    const cut = w.indexOf('=');
    if (cut > 0 && w.slice(0, cut) in state) {
      try { state[w.slice(0, cut)] = decodeURIComponent(w.slice(cut + 1)); } catch (bad) { /* as it was */ }
    }
  }
  views[name].state = state;
  return name;
}

function change(key, v, quiet) {
  const now = views[view];
  now.state[key] = v;
  if (now.changed) { now.changed(key); }
  history.replaceState(null, '', link());
  for (const s of now.settings) { if (s.refresh) { s.refresh(); } }
  if (!quiet) { now.show(now.state); }
}

// ---- fields ----

const nearest = (steps, x) => steps.reduce((best, s, i) =>
  Math.abs(Math.log((s || .5) / (x || .5))) < Math.abs(Math.log((steps[best] || .5) / (x || .5))) ? i : best, 0);

// A slider over steps with a number beside it. Empty: what the model or the machine says.
function sliderField(name, s) {
  const id = name + '-' + s.key;
  const range = el('input', {type: 'range', min: 0, id: id + '-slide', 'aria-label': s.label});
  const box = el('input', {type: 'number', id: id, min: s.least, step: s.exact || 'any', inputmode: 'decimal'});
  const state = () => views[name].state;
  const steps = () => typeof s.steps === 'function' ? s.steps() : s.steps;
  range.addEventListener('input', () => { box.value = steps()[range.value]; change(s.key, box.value); });
  box.addEventListener('input', () => { if (box.value !== '' || s.first === '') { change(s.key, box.value); } });
  s.refresh = () => {
    const list = steps(), v = state()[s.key], usual = s.usual ? s.usual() : '';
    if (document.activeElement !== box) { box.value = v; }
    box.placeholder = usual === '' ? '' : String(usual);
    range.max = list.length - 1;
    range.value = nearest(list, Number(v === '' ? usual : v));
    range.setAttribute('aria-valuetext', (v === '' ? usual : v) + (s.unit ? ' ' + s.unit : '') + (v === '' ? ', as usual' : ''));
    const off = s.off ? s.off() : '';
    range.disabled = box.disabled = off !== '';
    note.textContent = off !== '' ? off : (s.hint || '');
    note.hidden = note.textContent === '';
  };
  const note = el('span', {class: 'hint', id: id + '-hint'});
  box.setAttribute('aria-describedby', note.id);
  return el('div', {class: 'field'}, el('label', {for: id}, s.label + (s.unit ? ', ' + s.unit : '')),
    el('div', {class: 'slide'}, range, box), note);
}

// A choice of a list; with `other` also what one writes.
function choiceField(name, s) {
  const id = name + '-' + s.key, state = () => views[name].state;
  const select = el('select', {id: id});
  const text = el('input', {type: 'text', id: id + '-own', 'aria-label': s.label + ', written', spellcheck: 'false', autocapitalize: 'off', hidden: true});
  const note = el('span', {class: 'hint', id: id + '-hint'}, s.hint || '');
  select.setAttribute('aria-describedby', note.id);
  let wait = 0;
  s.refresh = () => {
    const list = s.list(), v = String(state()[s.key]);
    if (select.options.length === 0) {
      for (const c of list) {
        select.append(c.group ? el('optgroup', {label: c.group}, ...c.of.map((o) => el('option', {value: o.value}, o.name))) : el('option', {value: c.value}, c.name));
      }
      if (s.other) { select.append(el('option', {value: '\u0000'}, s.other)); }
    }
    const there = Array.from(select.options).some((o) => o.value === v);
    if (!s.writing || v !== text.value) { s.writing = !there; }
    select.value = s.writing ? '\u0000' : v;
    text.hidden = !s.writing;
    if (s.writing && document.activeElement !== text) { text.value = v; }
    if (s.shown) { note.parentNode.hidden = !s.shown(); }
    note.textContent = s.writing ? (s.example || '') : s.hint ? (typeof s.hint === 'function' ? s.hint() : s.hint) : '';
    note.hidden = note.textContent === '';
  };
  select.addEventListener('change', () => {
    if (select.value === '\u0000') {
      s.writing = true;
      text.value = state()[s.key];
      s.refresh();
      text.focus();
    } else {
      s.writing = false;
      change(s.key, select.value);
    }
  });
  text.addEventListener('input', () => {
    clearTimeout(wait);
    wait = setTimeout(() => { s.writing = true; change(s.key, text.value); }, 250);
  });
  return el('div', {class: 'field'}, el('label', {for: id}, s.label), select, text, note);
}

function textField(name, s) {
  const id = name + '-' + s.key, state = () => views[name].state;
  const text = el('input', {type: 'text', id: id, spellcheck: 'false', autocapitalize: 'off', autocomplete: 'off', placeholder: s.empty || ''});
  const note = el('span', {class: 'hint', id: id + '-hint'}, s.hint || '');
  text.setAttribute('aria-describedby', note.id);
  const field = el('div', {class: 'field'}, el('label', {for: id}, s.label), text, note);
  let wait = 0;
  s.refresh = () => {
    if (document.activeElement !== text) { text.value = state()[s.key]; }
    field.hidden = s.shown ? !s.shown() : false;
  };
  text.addEventListener('input', () => {
    clearTimeout(wait);
    wait = setTimeout(() => change(s.key, text.value), 250);
  });
  return field;
}

// Several yes or no, as letters in one setting.
function checksField(name, s) {
  const state = () => views[name].state;
  const boxes = s.of.map((o) => el('input', {type: 'checkbox', id: name + '-' + s.key + '-' + o.letter}));
  boxes.forEach((b) => b.addEventListener('change', () =>
    change(s.key, s.of.filter((o, i) => boxes[i].checked).map((o) => o.letter).join(''))));
  s.refresh = () => s.of.forEach((o, i) => { boxes[i].checked = String(state()[s.key]).includes(o.letter); });
  return el('div', {class: 'field', role: 'group', 'aria-label': s.label}, el('span', {class: 'name', 'aria-hidden': 'true'}, s.label),
    el('div', {class: 'checks'}, ...s.of.map((o, i) => el('label', {}, boxes[i], o.name))));
}

const fieldKinds = {slider: sliderField, choice: choiceField, text: textField, checks: checksField};

function buildFields(name) {
  const form = $('set-' + name), sets = {};
  form.addEventListener('submit', (e) => e.preventDefault());
  for (const s of views[name].settings) {
    if (!s.kind) { continue; }
    const f = fieldKinds[s.kind](name, s);
    if (s.wide) { f.classList.add('wide'); }
    if (s.set && !sets[s.set]) { form.append(sets[s.set] = el('fieldset', {}, el('legend', {}, s.set))); }
    (s.set ? sets[s.set] : form).append(f);
  }
}

// ---- pictures fit their width; colours follow the reader's ----

const drawings = [];
function onResize(id, draw) {
  drawings.push(draw);
  let width = 0;
  new ResizeObserver(() => {
    const now = $(id).clientWidth;
    if (now !== width && now > 0) { width = now; draw(); }
  }).observe($(id));
}

// A problem is said, and what was drawn before it stays, faint.
function trouble(name, sentences) {
  const e = $('error-' + name), bad = sentences && sentences.length > 0, last = views[name].last;
  const drawn = last && (!last.plans || last.plans.length > 0);
  e.hidden = !bad;
  e.replaceChildren(...(bad ? sentences.map((s) => el('div', {}, s)) : []));
  for (const part of document.querySelectorAll('#panel-' + name + ' .results > :not(.error):not(.progress):not(.command)')) {
    part.classList.toggle('stale', Boolean(bad && drawn));
    part.classList.toggle('absent', Boolean(bad && !drawn));
  }
  if (bad) { announce(sentences.join('. ')); }
}

// For tests: all of a question is answered.
function answered() { performance.mark('answered'); }

// ---- tabs ----

function openView(name, focus) {
  view = name;
  for (const n of Object.keys(views)) {
    const on = n === name;
    $('tab-' + n).setAttribute('aria-selected', on);
    $('tab-' + n).tabIndex = on ? 0 : -1;
    $('panel-' + n).hidden = !on;
  }
  if (focus) { $('tab-' + name).focus(); }
  for (const s of views[name].settings) { if (s.refresh) { s.refresh(); } }
  views[name].show(views[name].state);
}

async function start() {
  performance.mark('begin');
  const names = Object.keys(views);
  for (const n of names) { views[n].state = defaults(n); }
  try {
    await startEngine();
    performance.mark('unpacked');
    known = await ask('names');
    performance.mark('named');
  } catch (bad) {
    $('broken').textContent = 'This browser cannot run the page: it needs WebAssembly and DecompressionStream (Chrome 111, Firefox 113, Safari 16.4, or later). ' + bad;
    $('broken').hidden = false;
    return;
  }
  const v = known.version;
  $('version').textContent = 'Version ' + Math.floor(v / 10000) + '.' + Math.floor(v / 100) % 100 + '.' + v % 100 + '.';
  for (const n of names) { buildFields(n); views[n].build(); }
  names.forEach((n, i) => {
    $('tab-' + n).addEventListener('click', () => { openView(n); history.replaceState(null, '', link()); });
    $('tab-' + n).addEventListener('keydown', (e) => {
      const to = {ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: names.length - 1}[e.key];
      if (to === undefined) { return; }
      e.preventDefault();
      openView(names[(to + names.length) % names.length], true);
      history.replaceState(null, '', link());
    });
  });
  addEventListener('hashchange', () => openView(readLink()));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => drawings.forEach((d) => d()));
  openView(readLink());
}
