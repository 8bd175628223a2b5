// SPDX-License-Identifier: MIT-0
// engine - asks dpar. It runs in a worker, whose text is this function's; where a browser has none,
// in the page. `bytes` is the module of page.c; `say` takes what is answered.
//
// A question is {id, kind, ...}; its answer has the same id and kind. A search goes on in pieces, so
// that other questions are answered meanwhile; a newer one of its kind ends it.
function engine(bytes, say) {
  'use strict';
  const MORE = 2, DONE = 1, NONE = -8;
  const PIECE = 20000; // configurations between two looks at the questions
  let wasm = null, memory = null, latest = 0, halted = 0;
  const waiting = [];
  const utf8 = new TextEncoder(), text = new TextDecoder();

  function give(strings, numbers) {
    const room = new Uint8Array(memory.buffer, wasm.page_in(), 65536);
    let at = 0;
    for (const s of strings) {
      const coded = utf8.encode(s.slice(0, 20000));
      room.set(coded, at);
      at += coded.length;
      room[at++] = 0;
    }
    new Float64Array(memory.buffer, wasm.page_given(), 64).set(numbers || []);
  }

  // The numbers and lines of an answer, one after another.
  function answer(status) {
    const numbers = new Float64Array(memory.buffer, wasm.page_number(), wasm.page_numbers());
    const room = new Uint8Array(memory.buffer, wasm.page_text(), 1 << 20);
    const lines = text.decode(room.subarray(0, room.indexOf(0))).split('\n');
    let n = 0, l = 0;
    lines.pop();
    return {
      status: status,
      next: () => numbers[n++],
      take: (count) => Array.from(numbers.subarray(n, n += count)),
      left: () => lines.length - l,
      line: () => lines[l++],
      rest: () => lines.slice(l),
    };
  }

  // ---- names ----

  function names() {
    const list = (what) => { const a = answer(wasm.page_names(what)); return a.rest(); };
    const machines = [];
    const a = answer(wasm.page_names(1));
    a.next();
    while (a.left() > 0) {
      machines.push({name: a.line(), gpu: a.line(), source: a.line(),
        nodes: a.next(), perNode: a.next(), bytes: a.next()});
    }
    return {version: answer(wasm.page_names(8)).next(), models: list(0), machines: machines,
      gpus: list(2), precisions: list(3), orders: list(4), memory: list(5), time: list(6),
      rules: list(7)};
  }

  // ---- plans ----

  function plan(a) {
    const p = {text: a.line()};
    for (const name of ['fits', 'seconds', 'bytes', 'least', 'most', 'allocated', 'late', 'worst', 'moment',
      'samples', 'rate', 'mfu', 'mfuCausal', 'bubble', 'linkBytes', 'nicBytes', 'hidden', 'pp',
      'vp', 'micros', 'schedule']) {
      p[name] = a.next();
    }
    p.memory = a.take(13);
    p.time = a.take(14);
    return p;
  }

  function tell(which) {
    const a = answer(wasm.page_plan_tell(which)), t = {plans: [], front: [], reasons: []};
    const tops = a.next(), fronts = a.next();
    for (let i = 0; i < tops; i++) { t.plans.push(plan(a)); }
    for (let i = 0; i < fronts; i++) { t.front.push(plan(a)); }
    for (let n = a.next(); n > 0; n--) {
      t.reasons.push({rule: a.next(), seconds: a.next(), over: a.next(), text: a.line()});
    }
    t.evaluated = a.next();
    t.cut = a.next();
    t.walked = a.next();
    t.broken = a.take(15);
    return t;
  }

  function simulated(which) {
    const a = answer(wasm.page_plan_simulate(which));
    return a.status < 0 ? {why: a.line()} : {seconds: a.next(), slower: a.next(), idle: a.next(),
      bytes: a.next(), larger: a.next()};
  }

  // What takes longer than to show the plans: the recommendation, the schedules simulated.
  function advise(q) {
    const r = {simulated: []};
    if (q.advice) {
      const a = answer(wasm.page_plan_advise());
      r.advice = a.status < 0 ? {why: a.rest().join(' ')} : {name: a.line(), why: a.line(),
        simpler: a.line(), fastest: a.line(), mind: a.line(), seconds: a.next(), bytes: a.next()};
    }
    for (let i = 0; i < q.plans; i++) { r.simulated.push(simulated(i)); }
    return r;
  }

  function askPlan(q) {
    const began = Date.now();
    give([q.model, q.machine, q.options]);
    const a = answer(wasm.page_plan_ask());
    const r = {status: a.status};
    latest = q.id;
    if (a.status < 0 && a.left() < 4) {
      r.why = a.rest();
      return say({id: q.id, kind: q.kind, result: r});
    }
    r.work = a.line();
    r.cluster = a.line();
    r.gpu = a.line();
    r.precision = a.line();
    for (const name of ['gpus', 'nodes', 'had', 'batch', 'tokens', 'params', 'vocab', 'dims',
      'trains', 'steps', 'capacity']) {
      r[name] = a.next();
    }
    r.why = a.rest();
    const finish = (status) => {
      r.status = status;
      Object.assign(r, tell(0));
      r.took = (Date.now() - began) / 1000;
      say({id: q.id, kind: q.kind, result: r});
    };
    if (a.status !== MORE) {
      return a.status === DONE ? finish(DONE) : say({id: q.id, kind: q.kind, result: r});
    }
    const piece = () => {
      if (latest !== q.id) {
        return say({id: q.id, kind: q.kind, ended: true});
      }
      const b = answer(wasm.page_plan_run(PIECE));
      if (b.status === MORE) {
        const share = b.next();
        if (halted === q.id) {
          r.stopped = share;
          return finish(DONE);
        }
        say({id: q.id, kind: q.kind, progress: share, walked: b.next()});
        waiting.push(piece);
        return setTimeout(() => waiting.shift()(), 0);
      }
      if (b.status === NONE) {
        b.take(2);
        r.enough = wasm.page_numbers() > 2 ? b.next() : 0;
      }
      r.why = b.rest();
      finish(b.status);
    };
    piece();
  }

  // ---- pipelines ----

  function pipe(a) {
    const p = {};
    for (const name of ['makespan', 'span', 'idle', 'ofWork', 'peak', 'stages', 'chain', 'ranks',
      'share']) {
      p[name] = a.next();
    }
    return p;
  }

  function askPipeline(q) {
    give([q.schedule], q.numbers);
    const a = answer(wasm.page_pipeline());
    if (a.status < 0) { return {why: a.line()}; }
    const r = pipe(a);
    r.rank = [];
    for (let k = 0; k < r.ranks; k++) {
      const t = {};
      for (const name of ['busy', 'warmUp', 'dependency', 'communication', 'drain', 'peak',
        'actions']) {
        t[name] = a.next();
      }
      r.rank.push(t);
    }
    for (const t of r.rank) { // kind, joined, stage, micro-batch, start, end of each
      t.list = Float64Array.from(a.take(6 * t.actions));
    }
    r.path = a.take(a.next());
    r.formula = a.line();
    r.noFormula = a.line();
    r.closed = a.next();
    return r;
  }

  function askCompare(q) {
    give([], q.numbers);
    const a = answer(wasm.page_compare()), list = [];
    while (a.left() > 0) {
      const name = a.line(), status = a.next();
      list.push(status < 0 ? {name: name, why: a.line()} : Object.assign({name: name}, pipe(a)));
    }
    return {list: list};
  }

  // ---- who owns what ----

  function askLayout(q) {
    give([q.names], q.numbers);
    const a = answer(wasm.page_layout()), axes = q.numbers[1];
    if (a.status < 0) { return {why: a.line()}; }
    const r = {size: a.next(), rank: []};
    for (let k = 0; k < r.size; k++) {
      const t = {coord: a.take(axes), shape: a.take(2), offset: a.take(2), elements: a.next(),
        primary: a.next(), boxes: []};
      for (let n = a.next(); n > 0; n--) { t.boxes.push(a.take(4)); }
      r.rank.push(t);
    }
    r.owner = a.take(q.numbers[2] * q.numbers[3]);
    return r;
  }

  function askOwner(q) {
    give([], q.numbers);
    const a = answer(wasm.page_owner()), count = wasm.page_numbers() / 3, list = [];
    for (let k = 0; k < count; k++) { list.push({rank: a.next(), local: a.take(2)}); }
    return {list: list};
  }

  // ---- grids ----

  function askGrid(q) {
    give([], q.numbers);
    const a = answer(wasm.page_grid()), dims = q.numbers[0];
    if (a.status < 0) { return {why: a.rest().join('; ')}; }
    const box = () => a.next() ? a.take(2 * dims) : null;
    const r = {ranks: a.next(), ways: [], block: []};
    for (let way = 0; way < 4; way++) {
      const status = a.next();
      r.ways.push(status < 0 ? {why: a.line()} : status > 0 ? null : {parts: a.take(dims),
        kind: a.next(), all: a.next(), rank: a.next(), between: a.next(), node: a.next()});
    }
    r.parts = a.take(dims);
    for (let k = 0; k < r.ranks; k++) { r.block.push(box()); }
    r.chosen = a.next();
    r.box = box();
    r.core = box();
    r.receives = [];
    for (let n = a.next(); n > 0; n--) {
      const t = {peer: a.next(), cells: a.next(), extent: [], to: [], from: []};
      for (let d = 0; d < dims; d++) {
        t.extent.push(a.next());
        t.to.push(a.next());
        t.from.push(a.next());
      }
      r.receives.push(t);
    }
    r.sends = [];
    for (let n = a.next(); n > 0; n--) { r.sends.push({peer: a.next(), cells: a.next()}); }
    return r;
  }

  const answers = {names: names, pipeline: askPipeline, compare: askCompare, layout: askLayout,
    owner: askOwner, grid: askGrid, advise: advise,
    tell: (q) => ({reasons: tell(q.which).reasons, simulated: simulated(q.which)}),
    stop: () => { halted = latest; return {}; }};

  const ready = WebAssembly.instantiate(bytes, {}).then((made) => {
    wasm = made.instance.exports;
    memory = wasm.memory;
  });
  return (q) => ready.then(() => {
    if (q.kind === 'plan') {
      askPlan(q);
    } else {
      say({id: q.id, kind: q.kind, result: answers[q.kind](q)});
    }
  });
}
