// SPDX-License-Identifier: MIT-0
// plan - a model and a machine: what fits, how fast, why.

const powers = (from, to, with3) => {
  const list = [];
  for (let x = from; x <= to; x *= 2) { list.push(x); if (with3 && x * 1.5 <= to && (x * 1.5) % 1 === 0) { list.push(x * 1.5); } }
  return list;
};

// Terms of the library by what a bar shows of them.
const memoryParts = [
  {name: 'weights', colour: 'blue', of: [0]},
  {name: 'gradients', colour: 'sky', of: [1]},
  {name: 'optimizer, master copy', colour: 'green', of: [2, 3]},
  {name: 'activations', colour: 'orange', of: [4]},
  {name: 'buffers, logits, transient', colour: 'pink', of: [5, 6, 7, 8, 9]},
  {name: 'runtime, communication', colour: 'grey', of: [10, 11]},
  {name: 'fragmentation', colour: 'pale', of: [12]}];
const timeParts = [
  {name: 'forward', colour: 'blue', of: [0]},
  {name: 'backward', colour: 'sky', of: [1]},
  {name: 'recomputation', colour: 'green', of: [2]},
  {name: 'messages within layers (tp, cp, ep, halo)', colour: 'orange', of: [3, 4, 5, 6]},
  {name: 'pipeline (messages, bubble, imbalance)', colour: 'red', of: [7, 8, 9]},
  {name: 'data parallel', colour: 'pink', of: [10]},
  {name: 'optimizer, offload, host', colour: 'grey', of: [11, 12, 13]}];
const sizes = (parts, terms) => parts.map((p) => ({name: p.name, colour: colour(p.colour),
  size: p.of.reduce((a, i) => a + terms[i], 0)}));
const spell = (parts, show) => parts.filter((p) => p.size > 0).map((p) => p.name + ' ' + show(p.size)).join(', ');

views.plan = {
  settings: [
    {key: 'model', first: 'llama-3-70b', kind: 'choice', label: 'Model', wide: true, other: 'another, written…',
      example: 'A preset with changes: llama-3-8b,layers=40. Or gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048. Or grid:1440x720x100,fields=5',
      list: () => known.models.map((m) => ({value: m, name: m}))},
    {key: 'machine', first: 'dgx-h100', kind: 'choice', label: 'Machine', wide: true, other: 'another, written…',
      example: 'Nodes x GPUs: 8x8:h100-80,nvlink=450,nic=8x50 (GB/s, one direction). GPUs: any that a preset has',
      hint: () => { const m = machine(); return m ? m.nodes * m.perNode + ' ' + m.gpu + '. ' + m.source : ''; },
      list: () => known.machines.map((m) => ({value: m.name, name: m.name}))},
    {key: 'gpus', first: '64', kind: 'slider', label: 'GPUs', least: 1, exact: 1,
      usual: () => views.plan.last ? views.plan.last.gpus : '',
      steps: () => {
        const m = machine(), last = views.plan.last, per = m ? m.perNode : last ? last.gpus / last.nodes : 8;
        return powers(1, per, false).filter((x) => x < per).concat(powers(1, 2048, true).map((n) => n * per));
      }},
    {key: 'seq', first: '', kind: 'slider', label: 'Sequence', unit: 'tokens', least: 1, exact: 1,
      steps: powers(512, 1 << 20, true),
      usual: () => views.plan.last && views.plan.last.vocab > 0 && views.plan.state.seq === '' ? views.plan.last.tokens : '',
      off: () => views.plan.last && views.plan.last.vocab === 0 && views.plan.state.seq === '' ? 'This model has no sequence of tokens.' : ''},
    {key: 'batch', first: '512', kind: 'slider', label: 'Batch', unit: 'samples a step', least: 0, exact: 1,
      usual: () => views.plan.last && views.plan.state.batch === '' ? views.plan.last.batch : '',
      steps: powers(1, 65536, true)},
    {key: 'precision', first: '', kind: 'choice', label: 'Precision',
      list: () => [{value: '', name: 'megatron (usual)'}].concat(known.precisions.map((p) => ({value: p, name: p})))},
    {key: 'stack', first: '', kind: 'choice', label: 'Software',
      list: () => [{value: '', name: "the model's own"}].concat(['megatron', 'core', 'torch', 'compiled',
        'llm-foundry', 'torchtitan', 'nanotron', 'nemo', 'deepep', 'maxtext'].map((p) => ({value: p, name: p})))},
    {key: 'search', first: 'usual', kind: 'choice', label: 'Search', wide: true,
      list: () => [{value: 'usual', name: 'the usual plans'}, {value: 'whole', name: 'every divisor and option'},
        {value: 'one', name: 'one strategy alone'}],
      hint: () => ({whole: 'Searches millions of plans in seconds. The page remains usable.',
        one: 'Shows its time and memory even if it does not fit.', usual: ''}[views.plan.state.search])},
    {key: 'fix', first: '', kind: 'text', label: 'Only plans with', empty: 'tp=8,pp=2', wide: true,
      shown: () => views.plan.state.search !== 'one', hint: 'tp sp cp dp pp vp ep mbs m zero shard recompute schedule offload overlap'},
    {key: 'strategy', first: 'tp=8,pp=4,mbs=1', kind: 'text', label: 'Strategy', wide: true,
      shown: () => views.plan.state.search === 'one', hint: 'Settings that you leave out follow from the GPUs and the batch.'},
    {key: 'show', first: '0'},
  ],
  last: null,
  changed(key) { if (key !== 'show') { this.state.show = '0'; } },
  build() {
    fill('keys-plan');
    $('stop').addEventListener('click', () => ask('stop'));
    onProgress = (m) => {
      if (Date.now() - this.began > 250) { // what is drawn is of the settings before
        $('progress-plan').hidden = false;
        for (const part of document.querySelectorAll('#panel-plan .results > :is(.say, section, .two, .figures)')) { part.classList.add('stale'); }
      }
      document.querySelector('#progress-plan progress').value = m.progress;
      $('walked').textContent = short(m.walked) + ' plans, ' + percent(m.progress, 0);
    };
    onResize('front', () => this.drawFront());
  },
  options(s) {
    const words = [];
    for (const k of ['gpus', 'seq', 'batch', 'precision', 'stack']) { if (s[k] !== '') { words.push(k + '=' + s[k]); } }
    if (s.search === 'one') { words.push('evaluate=' + s.strategy); }
    else if (s.fix !== '') { words.push('fix=' + s.fix); }
    if (s.search === 'whole') { words.push('whole'); }
    return words.map((w) => w.replace(/\s+/g, '')).join(' ');
  },
  async show(s) {
    const options = this.options(s), asked = JSON.stringify([s.model, s.machine, options]);
    fill('command-plan', command(s));
    if (this.asked === asked && this.last) {
      await this.choose(Number(s.show) || 0);
      return answered();
    }
    this.asked = asked;
    this.began = Date.now();
    const r = await ask('plan', {model: s.model, machine: s.machine, options: options});
    if (!r || this.asked !== asked) { return; }
    $('progress-plan').hidden = true;
    const drawn = r.plans && r.plans.length > 0;
    trouble('plan', r.stopped !== undefined ? ['Stopped after ' + percent(r.stopped) + ' of the space. These are the best plans so far.'] : r.why);
    if (!drawn) {
      if (r.gpus) { this.last = Object.assign({}, this.last, r, {plans: this.last ? this.last.plans : []}); }
      this.asked = null;
      return answered();
    }
    for (const part of document.querySelectorAll('#panel-plan :is(.stale, .absent)')) { part.classList.remove('stale', 'absent'); }
    this.last = r;
    for (const f of this.settings) { if (f.refresh && view === 'plan') { f.refresh(); } }
    this.draw();
    this.choose(Number(s.show) || 0);
    performance.mark('picture');
    const more = await ask('advise', {plans: r.plans.length, advice: s.search !== 'one' && r.status === 1});
    if (this.last === r) {
      Object.assign(r, more);
      this.drawAdvice();
      await this.choose(Number(s.show) || 0, true);
      answered();
    }
  },

  all() { return this.last.plans.concat(this.last.front); },
  name(k) { const n = this.last.plans.length; return k < n ? 'Plan ' + (k + 1) : 'Plan of the front ' + (k - n + 1); },
  unit() { const r = this.last; return r.dims === 0 ? 'tokens' : r.tokens <= 1 ? 'images' : 'cells'; },

  draw() {
    const r = this.last, most = Math.max(r.capacity, ...r.plans.map((p) => p.bytes)) * 1.02;
    const slowest = Math.max(...r.plans.map((p) => p.seconds));
    const used = (parts, pick) => parts.filter((q, i) => r.plans.some((p) => sizes(parts, pick(p))[i].size > 0));
    fill('keys-plan', el('b', {}, 'Memory: the line is what a GPU has, ' + gb(r.capacity)),
      ...used(memoryParts, (p) => p.memory).map((p) => key(colour(p.colour), p.name)),
      el('b', {}, 'Time'), ...used(timeParts, (p) => p.time).map((p) => key(colour(p.colour), p.name)));
    const rows = r.plans.map((p, k) => {
      const m = sizes(memoryParts, p.memory), t = sizes(timeParts, p.time);
      const pick = el('input', {type: 'radio', name: 'plan', value: k, 'aria-label': 'Plan ' + (k + 1) + ': ' + p.text,
        onchange: () => change('show', String(k))});
      return el('tbody', {'data-plan': k},
        el('tr', {}, el('td', {}, pick), el('td', {class: 'n'}, value('plan' + k + '.bytes', p.bytes, gb(p.bytes))),
          el('td', {class: 'bars'}, bar(m, most, 'memory: ' + spell(m, gb), r.capacity)),
          el('td', {class: 'n'}, value('plan' + k + '.seconds', p.seconds, seconds(p.seconds))),
          el('td', {class: 'bars'}, bar(t, slowest, 'time: ' + spell(t, seconds))),
          el('td', {class: 'n extra'}, value('plan' + k + '.rate', p.rate, short(p.rate) + '/s')),
          el('td', {class: 'n extra'}, value('plan' + k + '.mfu', p.mfu, percent(p.mfu)))),
        el('tr', {class: 'words'}, el('td'), el('td', {colspan: 6}, el('code', {}, breakable(p.text)))));
    });
    fill('plans', el('caption', {class: 'unseen'}, 'Plans with their memory and time'),
      el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, el('span', {class: 'unseen'}, 'choose')), el('th', {scope: 'col', colspan: 2}, 'Memory a GPU'),
        el('th', {scope: 'col', colspan: 2}, r.trains ? 'Step' : 'Time'), el('th', {scope: 'col', class: 'n extra'}, this.unit() + '/GPU'), el('th', {scope: 'col', class: 'n extra'}, 'MFU'))), ...rows);
    this.drawAdvice();
    const left = known.rules.map((n, i) => [n, r.broken[i]]).filter((x) => x[1] > 0).sort((a, b) => b[1] - a[1]);
    fill('broken-rules', el('tr', {}, el('th', {scope: 'row'}, 'priced'), el('td', {class: 'n'}, value('evaluated', r.evaluated, count(r.evaluated)))),
      el('tr', {}, el('th', {scope: 'row'}, 'not priced: bounds say that they cannot be among these'), el('td', {class: 'n'}, count(r.cut))),
      ...left.map((x) => el('tr', {}, el('th', {scope: 'row'}, (x[0] === 'memory' ? 'do not fit in memory' : 'break the rule ' + x[0])), el('td', {class: 'n'}, count(x[1])))));
  },

  drawAdvice() {
    const a = this.last.advice, p = [];
    if (a && a.name) {
      const part = (name, text) => { if (text) { p.push(el('p', {}, el('b', {}, name + ': '), text)); } };
      part('Recommended', a.name + ', ' + seconds(a.seconds) + ' per step, ' + gb(a.bytes));
      part('Why', a.why);
      part('Fastest', a.fastest);
      part('Simpler', a.simpler);
      part('Mind', a.mind);
    }
    fill('advice', ...p);
  },

  async choose(k, again) {
    const r = this.last, all = this.all(), s = this.state;
    k = k >= 0 && k < all.length ? k : 0;
    const p = all[k], own = k < r.plans.length, which = own ? k : 8 + k - r.plans.length;
    for (const body of document.querySelectorAll('#plans tbody')) {
      const on = Number(body.dataset.plan) === k;
      body.classList.toggle('on', on);
      body.querySelector('input').checked = on;
    }
    const what = r.work + ' on ' + r.gpus + ' × ' + r.gpu + (r.trains ? ', ' + many(p.samples, 'sample') + ' per step' : '');
    const say = what + ': ' + (!p.fits ? (s.search === 'one' ? 'this strategy does not fit; it needs ' : 'nothing fits; the nearest plan needs ') + gb(p.bytes) + ' of the ' + gb(r.capacity) + ' that a GPU has.' + (r.enough ? ' It fits on ' + r.enough + ' such GPUs.' : '')
      : (s.search === 'one' ? 'this strategy takes ' : r.evaluated === 1 ? 'the only plan takes ' : k === 0 ? 'the fastest of ' + many(r.evaluated, 'plan') + ' takes ' : this.name(k).toLowerCase() + ' takes ') +
        seconds(p.seconds) + (r.trains ? ' per step' : '') + ' and ' + gb(p.bytes) + ' per GPU, ' + percent(p.bytes / r.capacity, 0) + ' of its memory.');
    const had = r.had > 0 ? ' The machine has ' + r.had + ' GPUs; more are of its kind.' : '';
    fill('say-plan', say + had);
    if (!again) { announce(say); }
    fill('figures-plan',
      figure(r.trains ? 'Step' : 'Time', value('seconds', p.seconds, seconds(p.seconds)), this.simulation(r.simulated && own ? r.simulated[k] : null, p)),
      figure('Memory a GPU', value('bytes', p.bytes, gb(p.bytes)), 'between ' + (p.least * 1e-9).toFixed(1) + ' and ' + gb(p.most) + ', a GPU has ' + gb(r.capacity)),
      figure(this.unit().replace(/^./, (c) => c.toUpperCase()) + ' a second and GPU', value('rate', p.rate, short(p.rate)), r.trains ? many(p.samples, 'sample') + ' a step' : null),
      figure('MFU', value('mfu', p.mfu, percent(p.mfu)), r.vocab > 0 ? percent(p.mfuCausal) + ' with causal attention at half' : 'of the dense peak'));
    this.drawTerms(p);
    this.chosen = k;
    this.drawFront();
    fill('h-reasons', k === 0 ? 'Why this plan' : 'Why not this plan');
    const more = k === 0 && r.reasons ? {reasons: r.reasons} : await ask('tell', {which: which});
    if (this.last !== r || this.chosen !== k) { return; }
    if (more.simulated) { document.querySelector('#figures-plan small').textContent = this.simulation(more.simulated, p); }
    fill('reasons', ...more.reasons.map((x) => el('li', {}, el('span', {class: 'verdict'},
      x.rule === 0 ? (x.seconds > p.seconds * 1.0005 ? 'slower' : x.seconds < p.seconds * .9995 ? 'faster' : 'as fast') : x.rule === 14 ? 'too large' : 'not legal'), el('span', {}, x.text))));
  },

  simulation(s, p) {
    return !s || s.why || p.pp < 2 ? '' : 'its schedule, simulated: ' + seconds(s.seconds) + ', ' + gb(s.bytes);
  },

  drawTerms(p) {
    const table = (id, caption, names, terms, parts, show, total, prefix) => {
      const hueOf = names.map((n, i) => colour(parts.find((q) => q.of.includes(i)).colour));
      const rows = names.map((n, i) => [n, terms[i], hueOf[i], i]).filter((x) => x[1] > 0);
      fill(id, el('caption', {}, caption), ...rows.map((x) => el('tr', {}, el('th', {scope: 'row'}, key(x[2], x[0])),
        el('td', {class: 'n'}, value(prefix + x[3], x[1], show(x[1]))), el('td', {class: 'n'}, percent(x[1] / total)))),
        el('tr', {class: 'sum'}, el('th', {scope: 'row'}, 'total'), el('td', {class: 'n'}, show(total)), el('td', {class: 'n'}, '100\u00a0%')));
      for (const k of $(id).querySelectorAll('.key')) { k.style.cssText = 'display:inline-flex;gap:7px;align-items:center'; k.firstChild.style.cssText += ';width:11px;height:11px;border-radius:2px;display:inline-block'; }
    };
    fill('say-terms', p.pp > 1 ? el('a', {href: '#pipeline&schedule=' + known.orders[p.schedule - 1] + '&ranks=' + p.pp + '&micro=' + p.micros + '&stages=' + p.vp}, 'See its pipeline') : '', p.pp > 1 ? '. ' : '', (p.pp > 1 ? 'Memory of pipeline stage ' + p.worst + ', the one with most, ' : 'Memory of a GPU, ') +
      (p.moment === 1 ? 'at the loss' : "in a layer's backward") + '. In a step a GPU sends ' + bytes(p.linkBytes) + ' inside its node and ' +
      bytes(p.nicBytes) + ' over the network; ' + seconds(p.hidden) + ' of that is hidden behind compute.');
    if (p.late > 0) { $('say-terms').append(' ' + bytes(p.late) + ' of the gathered weights are released late, when their memory is needed.'); }
    table('terms-memory', 'Memory', known.memory, p.memory, memoryParts, bytes, p.bytes, 'memory');
    table('terms-time', 'Time', known.time, p.time, timeParts, seconds, p.seconds, 'time');
  },

  // Memory across, time up; the front is a stair.
  drawFront() {
    const r = this.last;
    $('h-front').closest('section').hidden = !r || !r.plans || Math.max(r.plans.length, r.front.length) < 2;
    const width = $('front').clientWidth;
    if (!r || !r.plans || r.plans.length === 0 || width === 0) { return; }
    const high = Math.min(360, Math.max(240, width * .7)), left = 58, right = 14, upper = 14, lower = 40;
    const all = this.all(), n = r.plans.length;
    const points = all.map((p, k) => ({p: p, k: k, front: k >= n})).filter((x) => x.front || r.front.length === 0 || !r.front.some((f) => f.text === x.p.text));
    const xs = points.map((x) => x.p.bytes), ys = points.map((x) => x.p.seconds);
    const log = Math.max(...ys) > 3 * Math.min(...ys), L = log ? Math.log : (y) => y;
    let x0 = Math.min(...xs), x1 = Math.max(...xs), y0 = Math.min(...ys), y1 = Math.max(...ys);
    x0 -= .05 * (x1 - x0) + .01 * x1; x1 += .05 * (x1 - x0) + .01 * x1;
    if (log) { y0 /= 1.1; y1 *= 1.1; } else { y0 -= .08 * (y1 - y0) + .01 * y1; y1 += .08 * (y1 - y0) + .01 * y1; }
    const X = (b) => left + (b - x0) / (x1 - x0) * (width - left - right);
    const Y = (t) => upper + (L(y1) - L(t)) / (L(y1) - L(y0)) * (high - upper - lower);
    const s = svg('svg', {viewBox: '0 0 ' + width + ' ' + high, height: high, role: 'group', 'aria-label': 'Plans by memory and time'});
    const ticks = (a, b, most) => { const raw = (b - a) / most, e = Math.pow(10, Math.floor(Math.log10(raw))), step = [1, 2, 5, 10].find((f) => f * e >= raw) * e, l = []; for (let v = Math.ceil(a / step) * step; v <= b; v += step) { l.push(v); } return l; };
    const tens = (a, b) => { const l = []; for (let e = Math.floor(Math.log10(a)); e <= Math.log10(b); e++) { for (const f of b / a > 30 ? [1, 3] : [1, 2, 5]) { const v = f * Math.pow(10, e); if (v >= a && v <= b) { l.push(v); } } } return l; };
    for (const t of log ? tens(y0, y1) : ticks(y0, y1, 5)) {
      s.append(svg('line', {class: 'grid', x1: left, x2: width - right, y1: Y(t), y2: Y(t)}), svg('text', {class: 'soft', x: left - 6, y: Y(t) + 4, 'text-anchor': 'end'}, seconds(t)));
    }
    for (const b of ticks(x0 * 1e-9, x1 * 1e-9, Math.max(2, Math.floor(width / 90)))) {
      s.append(svg('line', {class: 'grid', x1: X(b * 1e9), x2: X(b * 1e9), y1: upper, y2: high - lower}), svg('text', {class: 'soft', x: X(b * 1e9), y: high - lower + 16, 'text-anchor': 'middle'}, plain(b)));
    }
    s.append(svg('text', {class: 'soft', x: (left + width - right) / 2, y: high - 6, 'text-anchor': 'middle'}, 'memory a GPU, GB' + (log ? '; time on a logarithmic scale' : '')));
    const front = r.front.slice().sort((a, b) => a.bytes - b.bytes);
    if (front.length > 0) {
      s.append(svg('path', {fill: 'none', stroke: colour('accent'), 'stroke-width': 1.5, d: front.map((p, i) => i === 0 ? 'M' + X(p.bytes) + ' ' + Y(p.seconds) : 'H' + X(p.bytes) + 'V' + Y(p.seconds)).join('')}));
    }
    points.sort((a, b) => a.p.bytes - b.p.bytes);
    const text = all[this.chosen] ? all[this.chosen].text : '';
    const lit = Math.max(0, points.findIndex((x) => x.p.text === text));
    const marks = points.map((x, i) => svg('circle', {cx: X(x.p.bytes), cy: Y(x.p.seconds), r: i === lit ? 7 : 4.5, tabindex: i === lit ? 0 : -1, role: 'button',
      'aria-pressed': i === lit, 'aria-label': gb(x.p.bytes) + ', ' + seconds(x.p.seconds) + ': ' + x.p.text,
      fill: x.front ? colour('accent') : colour('sheet'), stroke: i === lit ? colour('ink') : colour('accent'), 'stroke-width': i === lit ? 2.5 : 1.5},
      svg('title', {}, gb(x.p.bytes) + ', ' + seconds(x.p.seconds) + ': ' + x.p.text)));
    s.append(...marks);
    roving(marks, 1, (i) => {
      const same = r.plans.findIndex((p) => p.text === points[i].p.text);
      const had = document.activeElement && document.activeElement.tagName === 'circle';
      change('show', String(same >= 0 ? same : points[i].k));
      if (had) { const now = $('front').querySelector('[tabindex="0"]'); if (now) { now.focus(); } }
    });
    fill('front', s);
    fill('say-front', front.length > 1 ? 'Of ' + front.length + ' plans on the line none is both smaller and faster: from ' + gb(front[0].bytes) + ' in ' + seconds(front[0].seconds) + ' to ' + gb(front[front.length - 1].bytes) + ' in ' + seconds(front[front.length - 1].seconds) + '.'
      : front.length === 1 ? 'One plan is the smallest and the fastest.' : 'One plan.');
  },
};

const machine = () => known.machines.find((m) => m.name === views.plan.state.machine);
// A strategy may break behind its commas.
const breakable = (s) => s.replace(/,/g, ',\u200b');

function command(s) {
  const q = (w) => /^[\w.,:=+-]*$/.test(w) ? w : "'" + w.replace(/'/g, "'\\''") + "'";
  let c = './build/plan ' + q(s.model) + ' --cluster ' + q(s.machine);
  for (const k of ['gpus', 'seq', 'batch', 'precision', 'stack']) { if (s[k] !== '') { c += ' --' + k + ' ' + q(s[k]); } }
  return c + (s.search === 'one' ? ' --evaluate ' + q(s.strategy) : s.fix !== '' ? ' --fix ' + q(s.fix) : '') + (s.search === 'whole' ? ' --whole' : '');
}
