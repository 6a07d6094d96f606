"use strict";
// The cost model as `suite.costs.step` and `suite.costs.advice` have it, for workers that share neither processors nor nodes.
(() => {
  const KEPT = JSON.parse(document.getElementById("kept").textContent);
  const ring = (n) => 2 * (n - 1) / n;
  const FORMS = {
    "ring all-reduce": { rounds: (n) => 2 * (n - 1), sent: ring, ring: true, turns: false, hidden: 0.5 },
    "ring all-gather": { rounds: (n) => n - 1, sent: (n) => n - 1, ring: true, turns: false, hidden: 0 },
    "pairwise all-to-all": { rounds: () => 1, sent: (n) => (n - 1) / n, ring: false, turns: true, hidden: 0 },
    "send-recv": { rounds: () => 1, sent: () => 1, ring: false, turns: true, hidden: 0 },
  };
  const even = (x) => { const low = Math.floor(x); return x - low === 0.5 ? low + low % 2 : Math.round(x); };
  const sum = (values) => values.reduce((a, b) => a + b, 0);
  const measuredAs = (r) => r.collective === "all-reduce" ? KEPT.reduced[r.dtype] : r.collective;

  // ---- what a step sends

  function terms(parameters) {
    let width = Math.min(even(Math.cbrt(parameters * 64 / 12)), Math.floor(Math.sqrt(Math.trunc(parameters / 12))));
    if (12 * width * width > parameters) width -= 1;
    const depth = width ? Math.trunc(parameters / (12 * width * width)) : 0;
    const rest = Math.floor(parameters) - 12 * width * width * depth;
    return [parameters, 16 * width * depth, rest, parameters * Math.log2(parameters)];
  }

  function recipe(traffic, n, parameters, bucketBytes) {
    const count = traffic.whole ? 1 : Math.max(1, even(4 * parameters / bucketBytes));
    const declared = terms(parameters);
    const factor = sum(traffic.declared.map((each, i) => each * declared[i])) / count / traffic.elements;
    const larger = (listed) => listed.map(([collective, stage, nbytes, dtype, group, mutual, grows]) =>
      ({ collective, dtype, mutual, n, nbytes: grows ? factor * nbytes : nbytes }));
    return traffic.steps.map(([often, kind, plan, bucket, after]) =>
      ({ often, count, plan: larger(plan), bucket: larger(bucket), after: larger(after) }));
  }

  const requests = (step) => [
    ...step.plan, ...Array(step.count).fill(step.bucket).flat(), ...Array(step.count).fill(step.after).flat(),
  ];
  const length = (steps) => sum(steps.map((step) => step.often));
  const sentBytes = (steps) => sum(steps.map((step) => {
    const each = (listed) => sum(listed.map((r) => FORMS[KEPT.forms[measuredAs(r)]].sent(r.n) * r.nbytes));
    return step.often * (each(step.plan) + step.count * (each(step.bucket) + each(step.after)));
  }));

  // ---- what it takes

  function network(question) {
    const stack = KEPT.constants.stacks[question.transport];
    const own = KEPT.backend;
    const at = { rate: question.rate, delay: question.delay, efficiency: own.efficiency };
    if (stack.fitted) return { ...at, prices: own.prices, delayed: own.delayed };
    const price = {
      start_s: 1e-6 * stack.start_us, round_s: 1e-6 * stack.round_us,
      host_s: stack.host_gbit === null ? 0 : 8 / (1e9 * stack.host_gbit),
    };
    const prices = Object.fromEntries(Object.keys(KEPT.forms).map((what) => [what, price]));
    return { ...at, prices, delayed: stack.delays };
  }

  function call(net, r) {
    const what = measuredAs(r), form = FORMS[KEPT.forms[what]], price = net.prices[what];
    const sent = form.sent(r.n) * r.nbytes;
    const turns = form.turns && (r.mutual || r.n === 2) ? 2 : 1;
    const full = form.ring ? Math.min(1, r.nbytes / (4 * r.n)) : 1;
    const alone = price.start_s + form.rounds(r.n) * price.round_s;
    const rounds = alone + form.rounds(r.n) * (1 + (net.delayed - 1) * full) * net.delay;
    const wire = 8 * sent * turns / (net.rate * net.efficiency);
    const busy = Math.max(wire, price.host_s * sent);
    return { single: r.collective === "send-recv", busy, passes: Math.max(0, rounds - form.hidden * busy) };
  }

  function stepSeconds(step, local, net) {
    let now = 0, free = 0;
    const threads = Array(KEPT.threads).fill(0);
    const launch = (one) => {
      if (one.single) { free = Math.max(now, free) + one.busy; return free + one.passes; }
      const first = Math.min(...threads);
      free = Math.max(now, first, free) + one.busy;
      threads[threads.indexOf(first)] = free + one.passes;
      return free + one.passes;
    };
    const oneByOne = (calls, times) => { for (let i = 0; i < times; i += 1) for (const one of calls) now = launch(one); };
    const [plan, bucket, after] = [step.plan, step.bucket, step.after].map((listed) => listed.map((r) => call(net, r)));
    const share = 1 / step.count;
    oneByOne(plan, 1);
    now += KEPT.forward * local.compute;
    let waiting = [], moving = [];
    for (let i = 0; i < step.count; i += 1) {
      now += (1 - KEPT.forward) * local.compute * share;
      for (const flight of moving) {
        now = Math.max(now, flight.arrives);
        flight.arrives = launch(bucket[flight.launched]);
        flight.launched += 1;
      }
      now += local.encode * share;
      if (!bucket.length) { now += local.decode * share; continue; }
      const flight = { arrives: launch(bucket[0]), launched: 1 };
      waiting.push(flight);
      if (bucket.length > 1) moving = [...moving, flight].filter((one) => one.launched < bucket.length);
    }
    while (waiting.length) {
      const rest = [];
      for (const flight of waiting) {
        now = Math.max(now, flight.arrives);
        if (flight.launched < bucket.length) {
          flight.arrives = launch(bucket[flight.launched]);
          flight.launched += 1;
          rest.push(flight);
        } else now += local.decode * share;
      }
      waiting = rest;
    }
    now += local.update;
    oneByOne(after, step.count);
    return now;
  }

  const unitSeconds = (steps, local, net) => sum(steps.map((step) => step.often * stepSeconds(step, local, net)));

  // ---- advice

  const WIDTHS = { float32: 4, bfloat16: 2, float16: 2 };
  const CODECS = { float32: "none", bfloat16: "cast", float16: "cast" };

  function codecOf(method, steps, parameters) {
    const all = requests(steps[steps.length - 1]);
    const sent = sum(all.map((r) => r.nbytes));
    const dtypes = [...new Set(all.filter((r) => r.nbytes * all.length > 0.01 * sent).map((r) => r.dtype))];
    const dtype = dtypes.length === 1 ? dtypes[0] : "";
    if (dtype in WIDTHS) return sent > 0.99 * WIDTHS[dtype] * parameters ? CODECS[dtype] : null;
    return method.family === "sparsifier" ? "sparse" : "round";
  }

  function local(method, kind, steps, question) {
    const has = (name, listed) => listed.some((r) => r.collective === name);
    const gathers = steps.some((step) => has("all-gather", step.bucket));
    const pieces = steps.some((step) => has("all-to-all", [...step.plan, ...step.bucket, ...step.after]));
    const decoded = gathers && !pieces;
    if (question.device) {
      const name = codecOf(method, steps, question.parameters);
      if (name === null) return `the rules say of no codec that sends fewer floats what it takes on ${question.device}`;
      const codec = KEPT.constants.codecs[name];
      const one = 4 * question.parameters / (1e9 * KEPT.constants.devices[question.device]);
      return {
        compute: question.compute, encode: codec.encode * one, update: 0,
        decode: codec.decode * one * (decoded ? question.workers : 1),
      };
    }
    const { fixed, each } = method.overhead[kind];
    const part = (name) => fixed[name] + question.parameters * each[name];
    return {
      compute: question.compute, encode: part("encode_s"), update: part("update_s"),
      decode: part("decode_s") * (decoded ? question.workers / method.world_size : 1),
    };
  }

  function ways(method, question) {
    const parts = new Map();
    for (const size of question.overlap ? KEPT.sizes : [Infinity]) {
      const kinds = [];
      for (const [kind, share] of Object.entries(method.shares)) {
        if (!(share > 0)) continue;
        const entry = method.traffic[kind].find(([numbers]) => numbers.includes(question.workers));
        if (!entry) return `what it sends is not kept for ${question.workers} workers: bandwise advise`;
        if (typeof entry[1] === "string") return entry[1];
        const steps = recipe(entry[1], question.workers, question.parameters, size);
        const own = local(method, kind, steps, question);
        if (typeof own === "string") return own;
        kinds.push({ share, steps, own });
      }
      parts.set(size, kinds);
    }
    return parts;
  }

  const cut = (kinds, net) => sum(kinds.map(({ share, steps, own }) => share * unitSeconds(steps, own, net) / length(steps)));

  function references(question) {
    const caps = question.overlap ? [...new Set([...KEPT.sizes, ...KEPT.caps])] : [Infinity];
    const counts = [...new Set(caps.map((cap) => Math.max(1, even(4 * question.parameters / cap))))].sort((a, b) => a - b);
    const plain = { compute: question.compute, encode: 0, decode: 0, update: 0 };
    const of = {};
    for (const [name, [width, dtype]] of Object.entries(KEPT.references)) {
      const cuts = counts.map((count) => [{
        often: 1, count, plan: [], after: [],
        bucket: [{
          collective: "all-reduce", dtype, mutual: false, n: question.workers,
          nbytes: width * question.parameters / count,
        }],
      }]);
      of[name] = { sent: sentBytes(cuts[0]), seconds: (net) => Math.min(...cuts.map((one) => unitSeconds(one, plain, net))) };
    }
    return of;
  }

  function once(seconds, net) {
    const known = new Map();
    return (rate) => {
      if (!known.has(rate)) known.set(rate, seconds({ ...net, rate }));
      return known.get(rate);
    };
  }

  function breakEven(method, reference) {
    const behind = (x) => {
      const rate = Math.exp(x);
      return Math.log(Math.max(method(rate), 1e-300) / Math.max(reference(rate), 1e-300));
    };
    let [low, high] = KEPT.rates.map(Math.log);
    let last = behind(high);
    if (last < 0) return Infinity;
    let first = behind(low);
    if (first >= 0) return 0;
    let halve = true;
    while (high - low > KEPT.near) {
      const secant = (low * last - high * first) / (last - first);
      halve = halve || !(low + KEPT.near / 2 < secant && secant < high - KEPT.near / 2);
      const between = halve ? (low + high) / 2 : secant;
      const found = behind(between);
      halve = !halve;
      if (found < 0) { low = between; first = found; } else { high = between; last = found; }
    }
    return Math.exp(low);
  }

  function refusal(question) {
    if (question.transport.startsWith("nccl") && (!question.device || question.device === "cpu")) {
      return `${question.transport} carries buffers of GPUs: choose a device, or gloo`;
    }
    return "";
  }

  function advise(question, wanted = true) {
    const net = network(question), of = references(question);
    const steps = Object.fromEntries(Object.entries(of).map(([name, one]) => [name, once(one.seconds, net)]));
    const found = Object.entries(of).map(([name, one]) => ({
      method: `all-reduce ${name}`, step: steps[name](question.rate), own: 0, sent: one.sent, accuracy: "reference", worse: false,
      even: wanted ? Object.fromEntries(Object.keys(of).filter((other) => other !== name)
        .map((other) => [other, breakEven(steps[name], steps[other])])) : {},
    }));
    for (const method of KEPT.methods) {
      const parts = ways(method, question);
      if (typeof parts === "string") { found.push({ method: method.name, step: Infinity, accuracy: parts, even: {} }); continue; }
      let best = null;
      for (const [size, kinds] of parts) {
        const step = cut(kinds, net);
        if (best === null || step < best.step) best = { size, kinds, step };
      }
      const seconds = once((at) => Math.min(...[...parts.values()].map((kinds) => cut(kinds, at))), net);
      const locals = best.kinds.map(({ share, own }) => share * (own.compute + own.encode + own.decode + own.update));
      found.push({
        method: method.name, step: best.step, own: sum(locals) - question.compute,
        sent: sum(best.kinds.map(({ share, steps: one }) => share * sentBytes(one) / length(one))),
        accuracy: verdict(method.verdict, question.parameters), worse: method.worse,
        even: wanted ? Object.fromEntries(Object.keys(of).map((name) => [name, breakEven(seconds, steps[name])])) : {},
      });
    }
    const base = Math.min(...Object.keys(of).map((name) => steps[name](question.rate)));
    const band = question.device || question.transport !== "gloo" || !question.overlap ? KEPT.elsewhere : KEPT.error;
    for (const row of found) {
      row.speedup = base / row.step;
      row.low = band === null ? null : row.speedup / (1 + band);
      row.high = band === null ? null : row.speedup * (1 + band);
    }
    found.sort((a, b) => (a.step === Infinity) - (b.step === Infinity) || Boolean(a.worse) - Boolean(b.worse) || a.step - b.step);
    return found;
  }

  function size(parameters) {
    return `${(parameters / 1e6).toFixed(parameters < 1e7 ? 2 : 0)} M parameters`;
  }

  function verdict(known, parameters) {
    if (known === null) return "not known";
    if (parameters <= known.up_to) return known.words;
    return `measured on ${known.measured_on}: ${known.words}; for ${size(parameters)}: not known`;
  }

  // ---- the page

  // three digits of the first nine, in which both ways of summing agree; half way goes to the even one: as the command writes it
  const three = (x) => {
    if (x === null || !Number.isFinite(x)) return "-";
    const half = /^(-?\d\.\d[02468])50*(e.*)$/.exec(Number(x.toPrecision(9)).toExponential(60));
    return String(Number(half ? half[1] + half[2] : x.toPrecision(3)));
  };
  function rate(bits) {
    if (bits === undefined) return "-";
    if (bits === 0) return "never";
    if (bits === Infinity) return "always";
    for (const [unit, one] of [["Tbit/s", 1e12], ["Gbit/s", 1e9], ["Mbit/s", 1e6]]) {
      if (bits >= one) return `${three(bits / one)} ${unit}`;
    }
    return `${three(bits)} bit/s`;
  }

  const get = (name) => document.getElementById(`ask-${name}`);
  const steps = { parameters: [6, 10], rate: [7, 12], delay: [-6, -1.3], compute: [-3, 1] };
  const value = (name) => Number((10 ** Number(get(name).value)).toPrecision(2));
  function asked() {
    return {
      parameters: value("parameters"), workers: KEPT.workers[Number(get("workers").value)], rate: value("rate"),
      delay: Number(get("delay").value) <= steps.delay[0] ? 0 : value("delay"), compute: value("compute"),
      overlap: get("overlap").checked, device: get("device").value, transport: get("transport").value,
    };
  }

  function bar(row, most) {
    const place = (x) => 60 + 55 * Math.max(-1, Math.min(1, Math.log(x) / Math.log(most)));
    const line = row.low === null ? "" : `<line x1="${place(row.low)}" x2="${place(row.high)}" y1="7" y2="7" class="span"/>`;
    return `<svg viewBox="0 0 120 14" width="120" height="14" aria-hidden="true"><line x1="60" x2="60" y1="0" y2="14" class="one"/>`
      + `${line}<circle cx="${place(row.speedup)}" cy="7" r="3.5"/></svg>`;
  }

  function show(question, rows) {
    const body = document.querySelector("#answers tbody");
    body.replaceChildren();
    const able = rows.filter((row) => row.step < Infinity);
    const most = Math.max(1.5, ...able.map((row) => Math.max(row.speedup, 1 / row.speedup)));
    for (const row of rows) {
      const line = body.insertRow();
      const cells = row.step === Infinity ? ["-", "-", "-", "-", "-", "-", "-"] : [
        three(row.speedup), row.low === null ? "not scored" : `${three(row.low)} to ${three(row.high)}`,
        three(1e3 * row.step), three(1e3 * row.own), three(row.sent / 1e6), rate(row.even.fp32), rate(row.even.bf16),
      ];
      const name = line.appendChild(document.createElement("th"));
      name.scope = "row";
      name.textContent = row.method;
      const picture = line.insertCell();
      if (row.step < Infinity) picture.innerHTML = bar(row, most);
      for (const text of [...cells, row.accuracy]) line.insertCell().textContent = text;
    }
    const words = {
      parameters: size(question.parameters), workers: `${question.workers}`, rate: rate(question.rate),
      delay: question.delay ? `${three(1e3 * question.delay)} ms` : "none", compute: `${three(1e3 * question.compute)} ms`,
    };
    for (const [name, text] of Object.entries(words)) get(name).nextElementSibling.textContent = text;
    document.getElementById("command").textContent = `bandwise advise --params ${question.parameters} --workers `
      + `${question.workers} --rate ${question.rate / 1e6}mbit --delay ${three(1e6 * question.delay)}us --compute-ms `
      + `${three(1e3 * question.compute)}${question.overlap ? "" : " --no-overlap"}`
      + `${question.device ? ` --device ${question.device}` : ""}`
      + `${question.transport === "gloo" ? "" : ` --transport ${question.transport}`}`;
  }

  let later = 0;
  function answer() {
    const question = asked(), why = refusal(question);
    document.getElementById("refused").textContent = why;
    clearTimeout(later);
    if (why) { document.querySelector("#answers tbody").replaceChildren(); return; }
    show(question, advise(question, false));
    later = setTimeout(() => show(question, advise(question)), 120);
  }

  for (const name of Object.keys(steps)) [get(name).min, get(name).max] = steps[name];
  get("workers").max = KEPT.workers.length - 1;
  const first = { parameters: Math.log10(110e6), rate: 9, delay: -6, compute: Math.log10(0.18), workers: KEPT.workers.indexOf(16) };
  for (const [name, at] of Object.entries(first)) get(name).value = at;
  document.getElementById("ask").addEventListener("input", answer);
  answer();
  window.bandwise = { advise, refusal, three, rate };
})();
