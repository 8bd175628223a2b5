// SPDX-License-Identifier: MIT-0
// pipeline - an order of work on ranks, drawn as it would run, beside all others.

const wholes = (from, to, by) => { const l = []; for (let i = 0; from + i * by <= to + 1e-9; i++) { l.push(Number((from + i * by).toFixed(4))); } return l; };
const anyStages = ['interleaved', 'breadth-first', 'interleaved-zb', 'moe-overlap', 'forward-only'];
const kinds = {1: ['forward', 'blue'], 2: ['backward, both gradients', 'orange'], 3: ['input gradient', 'orange'], 4: ['weight gradient', 'green']};

views.pipeline = {
  settings: [
    {key: 'schedule', first: 'zb-h1', kind: 'choice', label: 'Order', wide: true, list: () => known.orders.map((o) => ({value: o, name: o}))},
    {key: 'ranks', first: '4', kind: 'slider', label: 'Ranks', least: 1, exact: 1, steps: wholes(1, 16, 1).concat([20, 24, 28, 32])},
    {key: 'micro', first: '8', kind: 'slider', label: 'Micro-batches', least: 1, exact: 1, steps: wholes(1, 32, 1).concat([40, 48, 64, 96, 128])},
    {key: 'stages', first: '2', kind: 'slider', label: 'Stages a rank', least: 1, exact: 1, steps: wholes(1, 8, 1),
      off: () => anyStages.includes(views.pipeline.state.schedule) ? '' : views.pipeline.state.schedule + ' has its own number.'},
    {key: 'slices', first: '2', kind: 'slider', label: 'Slices of a sequence', least: 1, exact: 1, steps: wholes(1, 8, 1),
      off: () => views.pipeline.state.schedule === 'seq1f1b' ? '' : 'Only for seq1f1b.'},
    {key: 'forward', first: '1', kind: 'slider', label: 'Forward', set: 'Times of all layers of a rank', least: 0, steps: wholes(0, 4, .1)},
    {key: 'input', first: '1', kind: 'slider', label: 'Input gradient', set: 'Times of all layers of a rank', least: 0, steps: wholes(0, 4, .1)},
    {key: 'weight', first: '1', kind: 'slider', label: 'Weight gradient', set: 'Times of all layers of a rank', least: 0, steps: wholes(0, 4, .1)},
    {key: 'message', first: '0', kind: 'slider', label: 'A message', set: 'Times of all layers of a rank', least: 0, steps: wholes(0, 2, .05),
      hint: 'From a stage to the next rank.'},
  ],
  last: null, cursor: null,
  build() {
    const canvas = $('gantt');
    canvas.addEventListener('keydown', (e) => this.move(e));
    canvas.addEventListener('pointermove', (e) => this.point(e));
    canvas.addEventListener('pointerdown', (e) => this.point(e));
    canvas.addEventListener('blur', () => { this.cursor = null; this.draw(); });
    onResize('gantt', () => this.draw());
    this.run = latestOnly((s) => this.answer(s));
  },
  show(s) {
    this.run(Object.assign({}, s));
  },
  // The command takes a stage's times, this page a rank's.
  flags(s, share) {
    const f = (x) => String(Number((Number(x) / share).toFixed(6)));
    const flag = (name, x) => (f(x) === '1' ? '' : ' --' + name + ' ' + f(x));
    return flag('fwd', s.forward) + flag('bwd-input', s.input) + flag('bwd-weight', s.weight) + (Number(s.message) > 0 ? ' --latency ' + s.message : '');
  },
  terminal(s, share) {
    fill('command-pipeline', './build/pipeline --schedule ' + s.schedule + ' --stages ' + s.ranks + ' --micro ' + s.micro +
      (anyStages.includes(s.schedule) ? ' --virtual ' + s.stages : '') + (s.schedule === 'seq1f1b' ? ' --slices ' + s.slices : '') + this.flags(s, share));
  },
  numbers(s) {
    const whole = (x) => Math.min(100000, Math.max(0, Math.round(Number(x)) || 0)), part = (x) => Math.min(1e6, Math.max(0, Math.round(100 * Number(x)) || 0));
    return [whole(s.ranks), whole(s.micro), Math.max(1, whole(s.stages)), Math.max(1, whole(s.slices)), part(s.forward), part(s.input), part(s.weight), part(s.message)];
  },
  async answer(s) {
    const numbers = this.numbers(s);
    const r = await ask('pipeline', {schedule: s.schedule, numbers: numbers});
    trouble('pipeline', r.why ? [r.why] : null);
    if (r.why) { this.terminal(s, 1); }
    if (!r.why) {
      this.last = r;
      this.cursor = null;
      this.draw();
      this.say(s, r);
      performance.mark('picture');
    }
    const c = await ask('compare', {numbers: numbers});
    this.compare(s, c.list);
    $('h-compare').closest('section').classList.remove('stale', 'absent');
    answered();
  },
  say(s, r) {
    const say = s.schedule + ', ' + many(r.ranks, 'rank') + ', ' + many(Number(s.micro), 'micro-batch', 'micro-batches') + ': a step takes ' + plain(r.makespan) +
      ' units of time; ranks stand idle for ' + percent(r.idle) + ' of it and hold at most ' + plain(r.peak) + ' ' + (r.peak === 1 ? 'activation' : 'activations') + '.';
    fill('say-pipeline', say);
    announce(say);
    this.terminal(s, r.share);
    fill('figures-pipeline',
      figure('Makespan', value('makespan', r.makespan, plain(r.makespan)), r.formula ? r.formula + ' = ' + plain(r.closed) : r.noFormula ? 'no closed form: ' + r.noFormula : null),
      figure('Span', value('span', r.span, plain(r.span)), 'of the rank that works longest, first to last'),
      figure('Idle', value('idle', r.idle, percent(r.idle)), 'of the makespan; ' + percent(r.ofWork) + ' of the work'),
      figure('Activations', value('peak', r.peak, plain(r.peak)), 'most on a rank, in micro-batches of all its layers'));
    const used = new Set();
    for (const t of r.rank) { for (let i = 0; i < t.list.length; i += 6) { used.add(t.list[i]); } }
    const ranks = r.stages > r.ranks;
    fill('keys-pipeline', ...[1, 2, 3, 4].filter((k) => used.has(k)).map((k) => key(colour(kinds[k][1]), kinds[k][0])), key('var(--track)', 'idle'),
      ranks ? el('span', {}, 'paler: later stages of a rank') : null, el('span', {}, 'numbers: micro-batches'));
    fill('ranks', el('tr', {}, ...['rank', 'busy', 'waits at first', 'for work', 'for messages', 'at the end', 'activations'].map((h, i) => el('th', {scope: 'col', class: i ? 'n' : ''}, h))),
      ...r.rank.map((t, k) => el('tr', {}, el('th', {scope: 'row'}, k), ...[t.busy, t.warmUp, t.dependency, t.communication, t.drain, t.peak].map((x) => el('td', {class: 'n'}, plain(x))))));
  },
  compare(s, list) {
    const good = list.filter((c) => !c.why).sort((a, b) => (a.name === 'forward-only') - (b.name === 'forward-only') || a.makespan - b.makespan || a.peak - b.peak), bad = list.filter((c) => c.why);
    const most = Math.max(...good.map((c) => c.makespan)), held = Math.max(...good.map((c) => c.peak));
    const pick = (c) => el('label', {}, el('input', {type: 'radio', name: 'order', value: c.name, checked: c.name === s.schedule, onchange: () => change('schedule', c.name)}), c.name === 'forward-only' ? 'forward-only (inference)' : c.name);
    const focused = document.activeElement && document.activeElement.name === 'order';
    fill('compare', el('caption', {class: 'unseen'}, 'Orders with makespan, idle time and activations'),
      el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'order'), el('th', {scope: 'col', colspan: 2}, 'makespan: busy, idle'), el('th', {scope: 'col', class: 'n'}, 'idle'), el('th', {scope: 'col', class: 'n'}, 'activations'), el('th', {scope: 'col', class: 'extra'}, 'most on a rank'))),
      el('tbody', {}, ...good.map((c) => el('tr', {class: c.name === s.schedule ? 'on' : ''}, el('th', {scope: 'row'}, pick(c)), el('td', {class: 'n'}, value(c.name + '.makespan', c.makespan, plain(c.makespan))),
        el('td', {class: 'bars'}, bar([{size: c.makespan * (1 - c.idle), colour: colour('blue')}, {size: c.makespan * c.idle, colour: colour('pale')}], most, plain(c.makespan * (1 - c.idle)) + ' busy, ' + plain(c.makespan * c.idle) + ' idle')),
        el('td', {class: 'n'}, value(c.name + '.idle', c.idle, percent(c.idle))), el('td', {class: 'n'}, value(c.name + '.peak', c.peak, plain(c.peak))),
        el('td', {class: 'bars extra'}, bar([{size: c.peak, colour: colour('grey')}], held, plain(c.peak) + ' activations')))),
      ...bad.map((c) => el('tr', {class: c.name === s.schedule ? 'on' : ''}, el('th', {scope: 'row'}, pick(c)), el('td', {colspan: 5, class: 'none', 'data-name': c.name + '.why'}, c.why)))));
    if (focused) { const on = $('compare').querySelector('input:checked'); if (on) { on.focus(); } }
  },

  // ---- the chart ----
  geometry() {
    const r = this.last, wide = $('gantt').clientWidth;
    const left = 56, right = 10, upper = 8, row = Math.max(7, Math.min(30, Math.floor(460 / r.ranks)));
    return {left: left, upper: upper, row: row, wide: wide, high: upper + row * r.ranks + 26, scale: (wide - left - right) / (r.makespan || 1)};
  },
  draw() {
    const r = this.last, canvas = $('gantt');
    if (!r || canvas.clientWidth === 0) { return; }
    const g = this.geometry(), dense = Math.min(3, window.devicePixelRatio || 1);
    canvas.style.height = g.high + 'px';
    canvas.width = g.wide * dense;
    canvas.height = g.high * dense;
    const c = canvas.getContext('2d'), paint = {};
    for (const n of ['blue', 'orange', 'green', 'track', 'ink', 'soft', 'line', 'sheet']) { paint[n] = seen(n); }
    c.scale(dense, dense);
    c.textBaseline = 'middle';
    const gap = g.row > 14 ? 2 : 1, face = getComputedStyle(document.body).fontFamily;
    const small = Math.min(12, g.row - 8);
    for (let k = 0; k < r.ranks; k++) {
      const t = r.rank[k], y = g.upper + k * g.row;
      c.globalAlpha = 1;
      c.fillStyle = paint.track;
      c.fillRect(g.left, y, r.makespan * g.scale, g.row - gap);
      const firstStage = Math.min(...Array.from({length: t.actions}, (x, i) => t.list[6 * i + 2]));
      let done = -1;
      for (let i = 0; i < t.list.length; i += 6) {
        const x = g.left + t.list[i + 4] * g.scale, w = (t.list[i + 5] - t.list[i + 4]) * g.scale;
        if (!kinds[t.list[i]] || w <= 0 || x + w < done + .3) { continue; }
        done = x + w;
        c.globalAlpha = t.list[i + 2] === firstStage ? 1 : .62;
        c.fillStyle = paint[kinds[t.list[i]][1]];
        c.fillRect(x, y, Math.max(w - (w > 4 ? 1 : w > 2 ? .5 : 0), .5), g.row - gap);
        if (t.list[i] === 2 && w > 4) { // a whole backward: of both its halves
          c.fillStyle = paint.green;
          c.fillRect(x, y + (g.row - gap) * .8, w - 1, (g.row - gap) * .2);
        }
        const label = String(t.list[i + 3]);
        if (small >= 8 && w > 3 + label.length * small * .62) {
          c.globalAlpha = 1;
          c.font = small + 'px ' + face;
          c.textAlign = 'center';
          c.fillStyle = t.list[i] === 1 && t.list[i + 2] === firstStage ? '#fff' : '#10161e';
          if (t.list[i] === 1 && t.list[i + 2] !== firstStage) { c.fillStyle = paint.ink; }
          c.fillText(label, x + w / 2 - .5, y + (g.row - gap) * (t.list[i] === 2 ? .42 : .5) + .5);
        }
      }
      c.globalAlpha = 1;
      const every = Math.ceil(12 / g.row);
      if (k % every === 0) {
        c.fillStyle = paint.soft;
        c.textAlign = 'right';
        c.font = Math.min(12, Math.max(9, g.row)) + 'px ' + face;
        c.fillText(g.row > 12 ? 'rank ' + k : String(k), g.left - 6, y + (g.row - gap) / 2);
      }
    }
    c.fillStyle = paint.soft;
    c.strokeStyle = paint.line;
    c.font = '12px ' + face;
    c.textAlign = 'center';
    const raw = r.makespan / Math.max(2, (g.wide - g.left) / 70) || 1, e = Math.pow(10, Math.floor(Math.log10(raw))), step = [1, 2, 5, 10].find((f) => f * e >= raw) * e;
    const foot = g.upper + g.row * r.ranks;
    for (let i = 0; i * step <= r.makespan + 1e-9; i++) {
      const x = g.left + i * step * g.scale;
      c.beginPath(); c.moveTo(x, foot); c.lineTo(x, foot + 4); c.stroke();
      if (x < g.wide - 12) { c.fillText(plain(i * step), x, foot + 14); }
    }
    if (this.cursor) {
      const t = r.rank[this.cursor[0]].list, i = 6 * this.cursor[1];
      c.strokeStyle = paint.ink;
      c.lineWidth = 2.5;
      c.strokeRect(g.left + t[i + 4] * g.scale, g.upper + this.cursor[0] * g.row, (t[i + 5] - t[i + 4]) * g.scale, g.row - gap);
    }
    canvas.setAttribute('aria-label', $('say-pipeline').textContent + ' A chart of ' + many(r.ranks, 'rank') + ' over time. Arrow keys move from slice to slice.');
  },
  tell() {
    const [k, n] = this.cursor, r = this.last, t = r.rank[k].list.subarray(6 * n, 6 * n + 6);
    fill('slice', 'Rank ' + k + ': ' + kinds[t[0]][0] + ' of micro-batch ' + t[3] + ', stage ' + t[2] + ', from ' + plain(t[4]) + ' to ' + plain(t[5]) + (t[1] ? ', together with the next' : '') + '.');
    this.draw();
  },
  move(e) {
    const r = this.last, by = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[e.key];
    if (!by || !r) { return; }
    e.preventDefault();
    if (!this.cursor) { this.cursor = [0, 0]; return this.tell(); }
    const k = Math.max(0, Math.min(r.ranks - 1, this.cursor[0] + by[0]));
    let n = this.cursor[1] + by[1];
    if (by[0]) { // what runs there at the time
      const time = r.rank[this.cursor[0]].list[6 * n + 4];
      n = 0;
      while (n + 1 < r.rank[k].actions && r.rank[k].list[6 * n + 5] <= time) { n++; }
    }
    this.cursor = [k, Math.max(0, Math.min(r.rank[k].actions - 1, n))];
    this.tell();
  },
  point(e) {
    const r = this.last, g = r && this.geometry();
    if (!g) { return; }
    const k = Math.floor((e.offsetY - g.upper) / g.row), time = (e.offsetX - g.left) / g.scale;
    if (k < 0 || k >= r.ranks) { return; }
    const list = r.rank[k].list;
    for (let n = 0; n < r.rank[k].actions; n++) {
      if (list[6 * n + 4] <= time && time < list[6 * n + 5]) { this.cursor = [k, n]; return this.tell(); }
    }
  },
};
