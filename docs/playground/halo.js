// SPDX-License-Identifier: MIT-0
// halo - a grid cut into blocks: who holds which, what an exchange sends.

const ways = [['least', 'least cut'], ['placed', 'least cut, placed on nodes'], ['mpi', 'MPI_Dims_create'], ['own', 'as written']];
const placeNames = ['in order', 'bricks', 'Morton', 'Hilbert'];
const numbersOf = (text) => (/^\s*\d+(\s*[x×,]\s*\d+)*\s*$/.test(text) ? text.split(/[x×,]/).map(Number) : []);

views.halo = {
  settings: [
    {key: 'cells', first: '64x96', kind: 'text', label: 'Cells', wide: true, hint: 'The cells of each dim, the slowest dim first: 64x96 or 1440x720x100.'},
    {key: 'ranks', first: '12', kind: 'slider', label: 'Ranks', least: 1, exact: 1, steps: wholes(1, 32, 1).concat([36, 40, 48, 64, 72, 96, 128, 144, 192, 256, 512, 1024]),
      off: () => views.halo.state.cut === 'own' ? 'The product of the parts.' : ''},
    {key: 'node', first: '4', kind: 'slider', label: 'Ranks a node', least: 1, exact: 1, steps: [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128]},
    {key: 'cut', first: 'least', kind: 'choice', label: 'Cut', wide: true, list: () => ways.map((w) => ({value: w[0], name: w[1]}))},
    {key: 'parts', first: '3x4', kind: 'text', label: 'Parts', wide: true, hint: 'The parts of each dim, such as 3x4.', shown: () => views.halo.state.cut === 'own'},
    {key: 'halo', first: '2', kind: 'slider', label: 'Halo', unit: 'cells', least: 0, exact: 1, steps: wholes(0, 8, 1)},
    {key: 'bytes', first: '8', kind: 'slider', label: 'Bytes a cell', least: 1, exact: 1, steps: [1, 2, 4, 8, 16, 24, 32, 40, 64, 128, 256, 512, 1024]},
    {key: 'round', first: '', kind: 'checks', label: 'Wraps around', of: [{letter: '0', name: 'dim 0'}, {letter: '1', name: 'dim 1'}, {letter: '2', name: 'dim 2'}]},
    {key: 'corners', first: '', kind: 'checks', label: 'Stencil', of: [{letter: 'y', name: 'edges and corners too'}]},
    {key: 'rank', first: '5'},
  ],
  last: null,
  build() {
    this.run = latestOnly((s) => this.answer(s));
    onResize('blocks', () => this.draw());
  },
  show(s) {
    const periodic = [0, 1, 2].filter((d) => String(s.round).includes(String(d)));
    const nodes = Math.ceil(Number(s.ranks) / Number(s.node));
    fill('command-halo', './build/decompose ' + s.cells.replace(/[×,]/g, 'x') + ' ' + nodes + 'x' + s.node + ' --halo ' + s.halo + ' --bytes ' + s.bytes + (periodic.length ? ' --periodic ' + periodic.join(',') : '') + (s.corners ? ' --box' : ''));
    this.run(Object.assign({}, s));
  },
  async answer(s) {
    const cells = numbersOf(s.cells), parts = s.cut === 'own' ? numbersOf(s.parts) : [], whole = (x) => Math.min(1e9, Math.max(0, Math.round(Number(x)) || 0));
    if (cells.length < 1 || cells.length > 3 || cells.some((c) => c < 1 || c > 1e9)) { trouble('halo', ['cells are 1 to 3 numbers of 1 to 1,000,000,000 with x between, such as 64x96, not \'' + s.cells + '\'']); return answered(); }
    if (s.cut === 'own' && (parts.length !== cells.length || parts.some((p) => p > 1e6))) { trouble('halo', ['parts are as many numbers as there are dims, ' + cells.length + ', such as ' + cells.map(() => 2).join('x') + ', not \'' + s.parts + '\'']); return answered(); }
    const dims = cells.length, pad = (l) => l.concat([1, 1, 1]).slice(0, 3);
    const round = [0, 1, 2].reduce((m, d) => m | (d < dims && String(s.round).includes(String(d)) ? 1 << d : 0), 0);
    const way = Math.max(0, ways.findIndex((w) => w[0] === s.cut));
    const r = await ask('grid', {numbers: [dims, whole(s.ranks), whole(s.node), whole(s.halo), whole(s.bytes), round, s.corners ? 1 : 0, way, whole(s.rank), ...pad(cells), ...pad(parts)]});
    trouble('halo', r.why ? [r.why] : null);
    if (r.why) { return answered(); }
    Object.assign(r, {cells: cells, dims: dims, perNode: Math.max(1, whole(s.node)), bytes: whole(s.bytes), halo: whole(s.halo), way: way});
    this.last = r;
    this.draw();
    this.say(s);
    performance.mark('picture');
    answered();
  },
  shape(box) { const d = []; for (let i = 0; i < box.length; i += 2) { d.push(box[i + 1] - box[i]); } return d; },
  say(s) {
    const r = this.last, w = r.ways[r.way], times = (l) => l.map(count).join(' × ');
    const in_ = new Map(), out = new Map();
    for (const t of r.receives) { in_.set(t.peer, (in_.get(t.peer) || 0) + t.cells); }
    for (const t of r.sends) { out.set(t.peer, (out.get(t.peer) || 0) + t.cells); }
    const got = Array.from(in_.values()).reduce((a, b) => a + b, 0), peers = Array.from(new Set([...in_.keys(), ...out.keys()])).filter((p) => p !== r.chosen);
    const say = times(r.cells) + ' cells on ' + many(r.ranks, 'rank') + ', cut ' + times(r.parts) + ': with a halo of ' + r.halo + ' each exchange sends ' + bytes(w ? w.all : 0) +
      ', of which ' + bytes(w ? w.between : 0) + ' between nodes.';
    fill('say-halo', say);
    announce(say);
    fill('say-block', 'Rank ' + r.chosen + ' on node ' + Math.floor(r.chosen / r.perNode) + ' has ' + (r.block.length && r.box ? times(this.shape(this.own())) + ' cells' : 'no cells') +
      (r.core ? ', of which ' + times(this.shape(r.core)) + ' need nothing from others' : '') + '; it receives ' + many(got, 'cell') + ' (' + bytes(got * r.bytes) + ') from ' + many(peers.length, 'rank') + '.');
    const most = Math.max(...r.ways.filter((x) => x && !x.why).map((x) => x.all)), focused = document.activeElement && document.activeElement.name === 'cut';
    fill('traffic', el('caption', {class: 'unseen'}, 'Cuts and what one exchange sends with each'),
      el('thead', {}, el('tr', {}, ...['cut', 'process grid', 'ranks on nodes'].map((h, i) => el('th', {scope: 'col', class: i === 2 ? 'extra' : ''}, h)), el('th', {scope: 'col', class: 'n'}, 'all ranks'), el('th', {scope: 'col', class: 'extra'}, 'between nodes, within them'), el('th', {scope: 'col', class: 'n'}, 'between nodes'), el('th', {scope: 'col', class: 'n extra'}, 'busiest rank'), el('th', {scope: 'col', class: 'n extra'}, 'busiest node'))),
      el('tbody', {}, ...ways.map((name, i) => {
        const x = r.ways[i];
        if (!x) { return null; }
        const pick = el('label', {}, el('input', {type: 'radio', name: 'cut', value: name[0], checked: i === r.way, onchange: () => change('cut', name[0])}), name[1]);
        if (x.why) { return el('tr', {}, el('th', {scope: 'row'}, pick), el('td', {colspan: 7, class: 'none'}, x.why)); }
        return el('tr', {class: i === r.way ? 'on' : ''}, el('th', {scope: 'row'}, pick), el('td', {}, x.parts.join('\u00a0×\u00a0')), el('td', {class: 'extra'}, placeNames[x.kind]),
          el('td', {class: 'n'}, value(name[0] + '.all', x.all, bytes(x.all))), el('td', {class: 'bars wide extra'}, bar([{size: x.between, colour: colour('red')}, {size: x.all - x.between, colour: colour('sky')}], most, bytes(x.between) + ' between nodes, ' + bytes(x.all - x.between) + ' within')),
          el('td', {class: 'n'}, value(name[0] + '.between', x.between, bytes(x.between))), el('td', {class: 'n extra'}, value(name[0] + '.rank', x.rank, bytes(x.rank))), el('td', {class: 'n extra'}, value(name[0] + '.node', x.node, bytes(x.node))));
      }).filter((x) => x)));
    if (focused) { const on = $('traffic').querySelector('input:checked'); if (on) { on.focus(); } }
    fill('peers', el('tr', {}, el('th', {scope: 'col'}, 'rank'), el('th', {scope: 'col'}, 'node'), ...['cells received', 'bytes received', 'cells sent', 'bytes sent'].map((h) => el('th', {scope: 'col', class: 'n'}, h))),
      ...Array.from(new Set([...in_.keys(), ...out.keys()])).sort((a, b) => a - b).map((p) => el('tr', {}, el('th', {scope: 'row'}, p === r.chosen ? p + ' itself' : p), el('td', {}, Math.floor(p / r.perNode)),
        ...[in_, out].flatMap((m, i) => [el('td', {class: 'n'}, value((i ? 'sent' : 'received') + p, m.get(p) || 0, count(m.get(p) || 0))), el('td', {class: 'n'}, bytes((m.get(p) || 0) * r.bytes))]))),
      in_.size + out.size === 0 ? el('tr', {}, el('td', {colspan: 6}, 'It exchanges nothing.')) : null);
  },
  own() { return this.last.block[this.last.chosen] || this.last.box; },

  // The last two dims, across and down; of three the layer in which the chosen rank lies.
  draw() {
    const r = this.last, width = $('blocks').clientWidth;
    if (!r || width === 0) { return; }
    const across = r.dims - 1, down = r.dims > 1 ? r.dims - 2 : -1, own = this.own();
    const nx = r.cells[across], ny = down >= 0 ? r.cells[down] : 1;
    const margin = Math.max(14, 0), wide = width - 2 * margin;
    const scale = [wide / (nx + 2 * r.halo), 0];
    scale[1] = down >= 0 ? Math.max(Math.min(scale[0], 440 / (ny + 2 * r.halo)), 120 / (ny + 2 * r.halo)) : 60;
    if (down >= 0 && scale[1] < scale[0] && nx * scale[1] > .35 * wide) { scale[0] = scale[1]; }
    const x0 = margin + r.halo * scale[0] + (wide - (nx + 2 * r.halo) * scale[0]) / 2, y0 = margin + (down >= 0 ? r.halo * scale[1] : 0), high = ny * scale[1] + 2 * y0;
    const rect = (b, more) => {
      const x = x0 + b[2 * across] * scale[0], w = (b[2 * across + 1] - b[2 * across]) * scale[0];
      const y = down >= 0 ? y0 + b[2 * down] * scale[1] : y0, h = down >= 0 ? (b[2 * down + 1] - b[2 * down]) * scale[1] : scale[1];
      return svg('rect', Object.assign({x: x, y: y, width: Math.max(w, 2), height: Math.max(h, 2)}, more));
    };
    const s = svg('svg', {viewBox: '0 0 ' + width + ' ' + high, height: high, role: 'radiogroup', 'aria-label': 'The blocks of the ranks' + (r.dims === 3 ? ', in the layer of the chosen rank' : '')});
    const layer = (b) => r.dims < 3 || !own || (b[0] < own[1] && b[1] > own[0]);
    const items = [], ranks = [];
    r.block.forEach((b, k) => {
      if (!b || !layer(b)) { return; }
      const node = Math.floor(k / r.perNode), item = rect(b, {fill: hue(node, .32), stroke: colour('sheet'), 'stroke-width': 2, role: 'radio', 'aria-checked': k === r.chosen, tabindex: k === r.chosen ? 0 : -1,
        'aria-label': 'rank ' + k + ', node ' + node, style: 'cursor:pointer'});
      ranks.push(k);
      items.push(item);
      s.append(item);
    });
    const near = (p) => Math.floor(p / r.perNode) === Math.floor(r.chosen / r.perNode);
    const piece = (at, extent, p, there) => {
      const b = [];
      for (let d = 0; d < r.dims; d++) { b.push(at[d], at[d] + extent[d]); }
      return r.dims < 3 || (b[0] < own[1] && b[1] > own[0]) ? rect(b, {fill: colour(near(p) ? 'sky' : 'red'), 'fill-opacity': there ? .95 : .55, 'pointer-events': 'none'}) : null;
    };
    for (const t of r.receives) {
      for (const e of [piece(t.from, t.extent, t.peer, false), piece(t.to, t.extent, t.peer, true)]) { if (e) { s.append(e); } }
    }
    ranks.forEach((k) => {
      const b = r.block[k], w = (b[2 * across + 1] - b[2 * across]) * scale[0], h = down >= 0 ? (b[2 * down + 1] - b[2 * down]) * scale[1] : scale[1];
      if (w > 8 + 7 * String(k).length && h > 14) {
        s.append(svg('text', {x: x0 + (b[2 * across] + b[2 * across + 1]) / 2 * scale[0], y: (down >= 0 ? y0 + (b[2 * down] + b[2 * down + 1]) / 2 * scale[1] : y0 + scale[1] / 2) + 4, 'text-anchor': 'middle', 'pointer-events': 'none', 'aria-hidden': 'true'}, k));
      }
    });
    if (r.box && own) {
      s.append(rect(r.box, {fill: 'none', stroke: colour('ink'), 'stroke-width': 1.5, 'stroke-dasharray': '5 4', 'pointer-events': 'none'}));
      s.append(rect(own, {fill: 'none', stroke: colour('ink'), 'stroke-width': 2.5, 'pointer-events': 'none'}));
    }
    const had = document.activeElement && document.activeElement.closest('#blocks');
    fill('blocks', s);
    // as they lie in the picture, so that arrow keys go where they point
    const place = (i) => { const b = r.block[ranks[i]]; return [down >= 0 ? b[2 * down] : 0, b[2 * across]]; };
    const sorted = items.map((e, i) => i).sort((a, b) => place(a)[0] - place(b)[0] || place(a)[1] - place(b)[1]);
    roving(sorted.map((i) => items[i]), r.parts[across], (i) => change('rank', String(ranks[sorted[i]])));
    if (had) { const on = $('blocks').querySelector('[tabindex="0"]'); if (on) { on.focus(); } }
    const nodes = Math.ceil(r.ranks / r.perNode);
    fill('keys-halo', el('span', {}, 'numbers: ranks; ' + (nodes > 1 ? 'colours: ' + nodes + ' nodes' : 'one node')),
      key('var(--sky)', 'halo of rank ' + r.chosen + ' from its node'), key('var(--red)', 'from other nodes'), el('span', {}, 'paler: copied from there'), el('span', {}, 'dashed: its array, halo included'),
      r.dims === 3 ? el('span', {}, 'dims 1 (down) and 2 (across)') : r.dims === 2 ? el('span', {}, 'dim 0 down, dim 1 across') : null);
  },
};
