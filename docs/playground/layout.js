// SPDX-License-Identifier: MIT-0
// layout - an array on a mesh: paint elements, see who holds them.

const rules = ['chunk', 'even', 'floor', 'block-cyclic', 'strided', 'zigzag', 'stripe'];
const ruleNumber = {chunk: 0, even: 1, floor: 2, 'block-cyclic': 3, strided: 5, zigzag: 6, stripe: 7};
const placements = [{value: 'replicate', name: 'replicate'}, {value: 'rows', name: 'shard rows'}, {value: 'columns', name: 'shard columns'}, {value: 'partial', name: 'partial sums'}];
const axisNames = ['dp_replicate', 'dp_shard', 'tp'];

function axisSettings(name, i, size, how) {
  const set = 'Axis ' + name, s = () => views.layout.state;
  return [
    {key: 'size' + i, first: size, kind: 'slider', label: 'Size of ' + name, set: set, least: 1, exact: 1, steps: wholes(1, 8, 1)},
    {key: 'how' + i, first: how, kind: 'choice', label: 'What ' + name + ' does', set: set, list: () => placements},
    {key: 'rule' + i, first: 'chunk', kind: 'choice', label: 'Rule of ' + name, set: set, shown: () => ['rows', 'columns'].includes(s()['how' + i]), list: () => rules.map((r) => ({value: r, name: r}))},
    {key: 'block' + i, first: '2', kind: 'text', label: 'Block or pieces of ' + name, set: set,
      shown: () => ['block-cyclic', 'strided'].includes(s()['rule' + i]) && ['rows', 'columns'].includes(s()['how' + i])},
  ];
}

const range = (name, lo, hi) => (hi - lo === 1 ? name + ' ' + lo : name + 's ' + lo + ' to ' + (hi - 1));

views.layout = {
  settings: [
    {key: 'rows', first: '12', kind: 'slider', label: 'Rows', least: 1, exact: 1, steps: wholes(1, 24, 1).concat([32, 48, 64])},
    {key: 'columns', first: '16', kind: 'slider', label: 'Columns', least: 1, exact: 1, steps: wholes(1, 24, 1).concat([32, 48, 64])},
    ...axisSettings('dp_replicate', 0, '1', 'replicate'), ...axisSettings('dp_shard', 1, '2', 'rows'), ...axisSettings('tp', 2, '4', 'columns'),
    {key: 'order', first: 'last', kind: 'choice', label: 'Fastest axis', wide: true,
      list: () => [{value: 'last', name: 'tp, the last (torch, JAX, MPI)'}, {value: 'first', name: 'dp_replicate, the first (Megatron, PETSc)'}]},
    {key: 'rank', first: '0'},
    {key: 'paint', first: '4,3,8,9'}, // row, column, row, column
  ],
  last: null,
  build() {
    this.run = latestOnly((s) => this.answer(s));
    onResize('array', () => { this.width = 0; this.drawArray(); });
  },
  show(s) { this.run(Object.assign({}, s)); },
  async answer(s) {
    const whole = (x) => Math.min(1e6, Math.max(0, Math.round(Number(x)) || 0));
    const numbers = [s.order === 'last' ? 0 : 1, 3, whole(s.rows), whole(s.columns)];
    for (let i = 0; i < 3; i++) {
      const how = s['how' + i];
      numbers.push(whole(s['size' + i]), how === 'partial' ? 2 : how === 'rows' || how === 'columns' ? 1 : 0, how === 'columns' ? 1 : 0,
        ruleNumber[s['rule' + i]] === undefined ? 0 : ruleNumber[s['rule' + i]], Math.max(-1e9, Math.min(1e9, Math.round(Number(s['block' + i])) || 0)));
    }
    const question = JSON.stringify(numbers);
    let r = this.last;
    if (this.question !== question) {
      r = await ask('layout', {names: axisNames.join(' '), numbers: numbers});
      trouble('layout', r.why ? [r.why] : null);
      if (r.why) { this.question = ''; return answered(); }
      r.rows = numbers[2];
      r.columns = numbers[3];
      r.sizes = [numbers[4], numbers[9], numbers[14]];
      this.last = r;
      this.question = question;
    }
    this.rank = Math.min(r.size - 1, Number(s.rank) || 0);
    const p = String(s.paint).split(',').map(Number);
    this.painted = p.length === 4 && p.every((x) => x >= 0) ? [Math.min(p[0], r.rows - 1), Math.min(p[1], r.columns - 1), Math.min(p[2], r.rows - 1), Math.min(p[3], r.columns - 1)] : null;
    this.drawMesh();
    this.drawArray();
    performance.mark('picture');
    await this.say();
    answered();
  },
  // Elements of the painted box that each rank holds.
  holders() {
    const [a, b, c, d] = this.painted, lo = [Math.min(a, c), Math.min(b, d)], hi = [Math.max(a, c) + 1, Math.max(b, d) + 1];
    const list = this.last.rank.map((t, k) => ({rank: k, elements: t.boxes.reduce((sum, x) => sum + Math.max(0, Math.min(x[1], hi[0]) - Math.max(x[0], lo[0])) * Math.max(0, Math.min(x[3], hi[1]) - Math.max(x[2], lo[1])), 0)}));
    return {lo: lo, hi: hi, all: (hi[0] - lo[0]) * (hi[1] - lo[1]), list: list.filter((x) => x.elements > 0)};
  },
  name(k) { return axisNames.map((n, i) => n + ' ' + this.last.rank[k].coord[i]).filter((n, i) => this.last.sizes[i] > 1).join(', '); },
  async say() {
    const r = this.last, t = r.rank[this.rank], largest = Math.max(...r.rank.map((x) => x.elements)), least = Math.min(...r.rank.map((x) => x.elements));
    const copies = r.rank.filter((x) => x.primary === 0 && x.elements > 0).length;
    const say = count(r.rows) + ' × ' + count(r.columns) + ' elements on ' + many(r.size, 'rank') + ': ' + (largest === least ? 'each holds ' + count(largest) + '.' : 'they hold ' + count(least) + ' to ' + count(largest) + '.') +
      (copies > 0 ? ' ' + many(copies, 'rank holds', 'ranks hold') + ' copies of what another has.' : ' No element is held twice.');
    fill('say-layout', say);
    const name = this.name(this.rank);
    const rank = 'Rank ' + this.rank + (name ? ' (' + name + ')' : '') + ' holds ' + t.shape[0] + ' × ' + t.shape[1] + ' = ' + count(t.elements) + ' elements' +
      (t.elements > 0 ? ', the first in row ' + t.offset[0] + ', column ' + t.offset[1] + (t.boxes.length > 1 ? ', in ' + t.boxes.length + ' boxes' : '') : '') + (t.primary || t.elements === 0 ? '.' : '; it is a copy.');
    fill('say-rank', value('rank.elements', t.elements, rank));
    announce(say);
    fill('shares', el('tr', {}, ...['rank', 'place', 'shape', 'elements', 'first row', 'first column', 'boxes', ''].map((h, i) => el('th', {scope: 'col', class: i > 1 && i < 7 ? 'n' : ''}, h))),
      ...r.rank.map((x, k) => el('tr', {}, el('th', {scope: 'row'}, k), el('td', {}, this.name(k)), el('td', {class: 'n'}, x.shape.join(' × ')), el('td', {class: 'n'}, value('share' + k, x.elements, count(x.elements))),
        el('td', {class: 'n'}, x.elements ? x.offset[0] : ''), el('td', {class: 'n'}, x.elements ? x.offset[1] : ''), el('td', {class: 'n'}, x.boxes.length), el('td', {}, x.elements && !x.primary ? 'copy' : ''))));
    if (!this.painted) {
      fill('say-paint', 'Nothing is painted.');
      fill('held', el('tr', {}, el('td', {}, 'Nothing is painted.')));
      return;
    }
    const h = this.holders(), one = h.all === 1;
    fill('say-paint', (one ? 'Row ' + h.lo[0] + ', column ' + h.lo[1] : range('Row', h.lo[0], h.hi[0]) + ', ' + range('column', h.lo[1], h.hi[1])) + ': ' + many(h.all, 'element') + ' on ' + many(h.list.length, 'rank') + '.');
    let local = null;
    if (one) { local = await ask('owner', {numbers: h.lo}); }
    fill('held', el('tr', {}, el('th', {scope: 'col'}, 'rank'), el('th', {scope: 'col'}, 'place'), el('th', {scope: 'col', class: 'n'}, one ? 'row, column of its own array' : 'elements'), el('th', {scope: 'col'}, 'of the painted')),
      ...(one ? local.list.map((x, i) => el('tr', {}, el('th', {scope: 'row'}, x.rank), el('td', {}, this.name(x.rank)), el('td', {class: 'n'}, value('local' + x.rank, x.local.join(','), x.local.join(', '))), el('td', {}, i === 0 ? 'primary' : 'copy')))
        : h.list.map((x) => el('tr', {}, el('th', {scope: 'row'}, x.rank), el('td', {}, this.name(x.rank)), el('td', {class: 'n'}, value('held' + x.rank, x.elements, count(x.elements))),
          el('td', {style: 'width:40%'}, bar([{size: x.elements, colour: hue(x.rank, 1)}], h.all, percent(x.elements / h.all, 0)))))));
  },
  drawMesh() {
    const r = this.last, [n0, n1, n2] = r.sizes, buttons = [];
    const rankAt = (a, b, c) => r.rank.findIndex((t) => t.coord[0] === a && t.coord[1] === b && t.coord[2] === c);
    const had = document.activeElement && document.activeElement.closest('#mesh');
    const planes = [];
    for (let a = 0; a < n0; a++) {
      const plane = el('div', {class: 'plane', style: 'grid-template-columns:repeat(' + n2 + ',minmax(0,' + '1fr' + '))'});
      for (let b = 0; b < n1; b++) {
        for (let c = 0; c < n2; c++) {
          const k = rankAt(a, b, c), empty = r.rank[k].elements === 0;
          const e = el('button', {type: 'button', role: 'radio', 'aria-checked': k === this.rank, tabindex: k === this.rank ? 0 : -1,
            'aria-label': 'rank ' + k + (this.name(k) ? ', ' + this.name(k) : '') + (empty ? ', nothing' : ', ' + many(r.rank[k].elements, 'element')), style: 'background:' + (empty ? 'none' : hue(this.primaryOf(k), .36))}, k);
          e.dataset.rank = k;
          buttons.push(e);
          plane.append(e);
        }
      }
      planes.push(el('div', {}, n0 > 1 ? el('div', {class: 'title'}, 'dp_replicate ' + a) : null, el('div', {class: 'title'}, 'dp_shard down, tp across'), plane));
    }
    fill('mesh', ...planes);
    roving(buttons, n2, (i) => change('rank', buttons[i].dataset.rank));
    if (had) { $('mesh').querySelector('[tabindex="0"]').focus(); }
  },
  // Whose copy it is: the rank that has the same elements first.
  primaryOf(k) {
    const b = this.last.rank[k].boxes[0];
    return b ? this.last.owner[b[0] * this.last.columns + b[2]] : k;
  },
  drawArray() {
    const r = this.last, width = $('array').clientWidth;
    if (!r || width === 0) { return; }
    const cell = Math.max(4, Math.min(34, (width - 34) / r.columns, 620 / r.rows)), left = 30, upper = 22;
    const s = svg('svg', {viewBox: '0 0 ' + width + ' ' + (upper + cell * r.rows + 6), height: upper + cell * r.rows + 6, tabindex: 0, role: 'application',
      'aria-label': 'The array, ' + r.rows + ' rows and ' + r.columns + ' columns. Arrow keys move, with Shift they paint more.', style: 'touch-action:none;cursor:crosshair'});
    const words = [];
    for (let k = 0; k < r.size; k++) {
      if (!r.rank[k].primary) { continue; }
      for (const b of r.rank[k].boxes) {
        const x = left + b[2] * cell, y = upper + b[0] * cell, w = (b[3] - b[2]) * cell, h = (b[1] - b[0]) * cell;
        s.append(svg('rect', {x: x, y: y, width: w, height: h, fill: hue(k, .36), stroke: colour('sheet'), 'stroke-width': 1.5}));
        if (w > 9 + 6 * String(k).length && h > 13) { words.push(svg('text', {'pointer-events': 'none', x: x + w / 2, y: y + h / 2 + 4, 'text-anchor': 'middle'}, k)); }
      }
    }
    if (cell >= 8) {
      let d = '';
      for (let i = 0; i <= r.rows; i++) { d += 'M' + left + ' ' + (upper + i * cell) + 'h' + r.columns * cell; }
      for (let i = 0; i <= r.columns; i++) { d += 'M' + (left + i * cell) + ' ' + upper + 'v' + r.rows * cell; }
      s.append(svg('path', {d: d, stroke: colour('sheet'), 'stroke-width': .5, fill: 'none', opacity: .8}));
    }
    const every = Math.ceil(22 / cell);
    for (let i = 0; i < r.rows; i += every) { s.append(svg('text', {class: 'soft', x: left - 6, y: upper + (i + .5) * cell + 4, 'text-anchor': 'end', style: 'font-size:11px'}, i)); }
    for (let i = 0; i < r.columns; i += every) { s.append(svg('text', {class: 'soft', x: left + (i + .5) * cell, y: upper - 7, 'text-anchor': 'middle', style: 'font-size:11px'}, i)); }
    for (const b of r.rank[this.rank].boxes) {
      s.append(svg('rect', {x: left + b[2] * cell + 1, y: upper + b[0] * cell + 1, width: (b[3] - b[2]) * cell - 2, height: (b[1] - b[0]) * cell - 2, fill: 'none', stroke: colour('ink'), 'stroke-width': 2.5}));
    }
    const brush = svg('rect', {fill: colour('ink'), 'fill-opacity': .22, stroke: colour('ink'), 'stroke-width': 1.5, 'stroke-dasharray': '4 3', 'pointer-events': 'none'});
    s.append(brush, ...words);
    const lay = (p) => {
      brush.setAttribute('visibility', p ? 'visible' : 'hidden');
      if (p) {
        brush.setAttribute('x', left + Math.min(p[1], p[3]) * cell); brush.setAttribute('width', (Math.abs(p[3] - p[1]) + 1) * cell);
        brush.setAttribute('y', upper + Math.min(p[0], p[2]) * cell); brush.setAttribute('height', (Math.abs(p[2] - p[0]) + 1) * cell);
      }
    };
    lay(this.painted);
    const at = (e) => {
      const box = s.getBoundingClientRect();
      return [Math.max(0, Math.min(r.rows - 1, Math.floor((e.clientY - box.top - upper) / cell))), Math.max(0, Math.min(r.columns - 1, Math.floor((e.clientX - box.left - left) / cell)))];
    };
    const paint = (p) => { this.painted = p; lay(p); change('paint', p.join(','), true); this.say(); };
    let from = null;
    s.addEventListener('pointerdown', (e) => { from = at(e); s.setPointerCapture(e.pointerId); paint([...from, ...from]); });
    s.addEventListener('pointermove', (e) => { if (from) { paint([...from, ...at(e)]); } });
    s.addEventListener('pointerup', () => { from = null; });
    s.addEventListener('pointercancel', () => { from = null; });
    s.addEventListener('keydown', (e) => {
      const by = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[e.key];
      if (!by) { return; }
      e.preventDefault();
      const p = this.painted || [0, 0, 0, 0];
      const to = !this.painted ? [0, 0] : [Math.max(0, Math.min(r.rows - 1, p[2] + by[0])), Math.max(0, Math.min(r.columns - 1, p[3] + by[1]))];
      paint(e.shiftKey ? [p[0], p[1], ...to] : [...to, ...to]);
    });
    const had = document.activeElement && document.activeElement.closest('#array');
    fill('array', s);
    if (had) { s.focus(); }
  },
};
