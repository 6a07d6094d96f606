"use strict";
/* The calculator: `bandwise advise` in a page, of the same evidence (calculator.json). Numbers and words are those of
   bandwise/evidence.py and bandwise/costs.py, to which a test holds them. */
const known = JSON.parse(document.getElementById("known").textContent);
for (const study of known.studies) study.arms = study.arms.map((arm) => ({ ...known.usual, workers: study.workers, ...arm }));
const form = document.getElementById("question"), field = form.elements;
const ENDS = ["none", "all"];
const WHERE = { none: "where nothing overlaps", all: "where communication overlaps with computing, as DistributedDataParallel's does" };

const digits = (value, many = 2) => Number(value.toPrecision(many)).toLocaleString("en-US", { maximumFractionDigits: 12 });
const interval = (ends) => {
  const [middle, low, high] = ends.map((end) => (end < 10 ? end.toFixed(2) : digits(end, 3)));
  return `${middle} [${low}, ${high}]`;
};
const size = (parameters) => `${digits(parameters / 1e6)} M parameters`;

/* ---- seconds */

/* Bytes a parameter of four workers, between sizes on the line through logarithms; null where a neighbour was not traced. */
function between(values, parameters) {
  const logs = known.sizes.map(Math.log), at = Math.min(Math.max(Math.log(parameters), logs[0]), logs[logs.length - 1]);
  const i = Math.min(logs.findLastIndex((log) => log <= at), logs.length - 2), [first, last] = [values[i], values[i + 1]];
  if (at === logs[i] || at === logs[i + 1]) return at === logs[i] ? first : last;
  if (first === null || last === null) return null;
  const share = (at - logs[i]) / (logs[i + 1] - logs[i]);
  return first && last ? Math.exp((1 - share) * Math.log(first) + share * Math.log(last)) : 0;
}

/* What a worker sends: [share of steps, bytes, steps behind which they hide, if not 1] a kind of steps; null: not known. */
function sent(method, asked) {
  const n = asked.workers, kinds = known.sent[method].map((kind) => {
    const each = asked.model ? kind.of[asked.model] : between(kind.at, asked.parameters);
    const grows = (1 - kind.gathered) * ((n - 1) / n / 0.75) + kind.gathered * ((n - 1) / 3);
    return [kind.share, each === null ? null : each * grows * asked.parameters, kind.behind];
  });
  return kinds.length && kinds.every(([, nbytes]) => nbytes !== null) ? kinds : null;
}

function predict(kinds, rate, compute, kappa) {
  const local = compute + (kappa ?? 0) * compute, found = { none: local, all: 0, nbytes: 0 };
  for (const [share, nbytes, behind = 1] of kinds) {
    const seconds = (8 * nbytes) / (known.efficiency * rate);
    found.none += share * seconds;
    found.all += share * Math.max(local, seconds - (behind - 1) * local);
    found.nbytes += share * nbytes;
  }
  found.all = Math.max(found.all, found.none - local);
  return found;
}

/* Own computing as a share of computing: on a GPU by the parameter. */
function kappaFor(arm, asked) {
  if (!field.device.value) return arm.kappa;
  return arm.gpu_ns === null ? null : (1e-9 * arm.gpu_ns * asked.parameters) / (asked.compute * arm.batch);
}

/* How that is counted, where the arm's own study does not say it. */
function own(arm, kappa) {
  if (kappa === null) return ", what it computes itself not counted";
  return arm.kappa_of && !field.device.value ? `, what it computes itself counted as study ${arm.kappa_of} timed it` : "";
}

/* ---- the verdict: an option is an arm and, at either end, seconds of its training over those of plain training */

const ends = (arm) => (arm.worth === null ? [0, 0, 0] : [arm.worth, arm.low, arm.high]);

function worths(own, its) {
  if (own.over[its.arm]) return own.over[its.arm];
  if (its.over[own.arm]) {
    const [middle, low, high] = its.over[own.arm];
    return [1 / middle, 1 / high, 1 / low];
  }
  const mine = ends(own), others = ends(its);
  return [[0, 0], [1, 2], [2, 1]].map(([i, j]) => (others[j] ? mine[i] / others[j] : mine[i] ? Infinity : 0));
}

const over = (own, its, overlap) => worths(own.arm, its.arm).map((worth) => (worth * its.time[overlap]) / own.time[overlap]);

function isSure(arm, rho, overlap) {
  const [first, last] = arm.sure[overlap] ?? [Infinity, 0];
  return (first ?? 0) <= rho && rho <= (last ?? Infinity);
}

const bound = (rho, overlap) => (overlap === "none" ? 1 + rho : Math.max(1, rho));

function verdict(study, options, asked, overlap) {
  const reference = { arm: study.arms.find((arm) => arm.role === "reference"), time: { none: 1, all: 1 }, own: "" };
  const net = (one) => over(one, reference, overlap), most = bound(asked.rho, overlap);
  const ranked = [...options, reference].sort((one, other) => net(other)[0] - net(one)[0]);
  if (most <= 1 + known.little) {
    const because = `sending less makes a step at most ${most.toFixed(2)} times as fast at any size, and no measured training by the same optimizer takes surely fewer steps`;
    return { verdict: "plain", candidates: [reference.arm], net: [1, 1, 1], study: null, because };
  }
  const lacks = [];
  if (asked.parameters > known.larger * study.parameters)
    lacks.push(`your model is ${digits(asked.parameters / study.parameters)} times as large as the study's`);
  if (asked.workers !== study.workers) lacks.push(`you have ${asked.workers} workers, the study ${study.workers}`);
  lacks.push(...study.unfit);
  if (lacks.length) {
    const because = `${lacks.join("; ")}; a study of ${size(asked.parameters / known.larger)} or more, ${asked.workers} workers and ${known.horizon} bytes a parameter would tell; in the nearest study ${ranked[0].arm.name} has the highest net speedup, ${interval(net(ranked[0]))}`;
    return { verdict: "unknown", candidates: [], net: null, study, because };
  }
  const ahead = (one, other) =>
    (one.arm.does !== "use" || other.arm.does === "use" || isSure(one.arm, asked.rho, overlap)) && over(one, other, overlap)[1] > 1;
  const rivals = ranked.filter((one) => one.arm.does !== "use");
  const left = ranked.slice(1).filter((one) => over(rivals[0], one, overlap)[1] <= 1 && !ranked.some((other) => ahead(other, one)));
  const decided = left.every((one) => one.arm.does === ranked[0].arm.does), all = [ranked[0], ...left];
  const best = (decided && ranked[0].arm.does === "use" && all.find((one) => isSure(one.arm, asked.rho, overlap))) || ranked[0];
  const tied = all.filter((one) => one !== best);
  let because;
  if (!decided) {
    const nets = [best, ...tied].map((one) => `${one.arm.name} ${interval(net(one))}`);
    const why = tied.some((one) => over(best, one, overlap)[1] > 1)
      ? `the study's verdict on ${best.arm.name} does not reach here` : "net speedups over plain training do not lie apart";
    because = `${why}: ${nets.join("; ")}`;
  } else if (best === reference) {
    because = "nothing ends as well in less time";
    if (ranked.length > 1) because += `; the next is ${ranked[1].arm.name}, net speedup ${interval(net(ranked[1]))}`;
  } else {
    because = `its net speedup over plain training is ${interval(net(best))}`;
    if (best.arm.does !== "use") because += ", and no method's is higher";
    else if (rivals[0] !== reference) because += `, over ${rivals[0].arm.name} ${interval(over(best, rivals[0], overlap))}`;
    because += best.own;
    if (tied.length) because += `; undecided beside it: ${tied.map((one) => one.arm.name).join("; ")}`;
  }
  return { verdict: decided ? best.arm.does : "undecided", candidates: [best, ...tied].map((one) => one.arm), net: net(best), study, because };
}

const isOpen = (one) => one.verdict === "unknown" || one.verdict === "undecided";
const words = (one) => (isOpen(one) ? one.verdict : ({ use: "use ", "send nothing": "send nothing: " }[one.verdict] ?? "") + one.candidates[0].name);

function answer(rho, found) {
  const { none: serial, all: overlapped } = found;
  const same = (one, other) => one.length === other.length && one.every((arm, i) => arm === other[i]);
  let said;
  if (words(serial) === words(overlapped) && (serial.verdict !== "undecided" || same(serial.candidates, overlapped.candidates))) {
    said = `${words(serial)}, because ${serial.because}`;
    if (overlapped.net && overlapped.study) said += `; where all overlaps the net speedup is ${interval(overlapped.net)}`;
  } else {
    const order = ["all", "none"].sort((one, other) => isOpen(found[one]) - isOpen(found[other]));
    said = order.map((end) => `${words(found[end])} ${WHERE[end]}, because ${found[end].because}`).join("; ");
  }
  const study = serial.study ?? overlapped.study;
  return `At rho ${digits(rho)}: ${said}${study ? ` (${study.words})` : ""}`;
}

/* The study that answers: as many workers before other numbers, then the nearest size. */
function fitting(asked) {
  const far = (study) => Math.abs(Math.log(study.parameters / asked.parameters));
  return [...known.studies].sort((one, other) => (one.workers !== asked.workers) - (other.workers !== asked.workers) || far(one) - far(other))[0];
}

/* ---- the question, in the fields and in the address */

const about = () => known.models[field.model.value];
const number = (name) => (field[name].value === "" ? NaN : Number(field[name].value));
const short = (value) => String(Number(value.toPrecision(4)));

/* What was changed last decides: names fill numbers, a number undoes the name, rho stands for rate and seconds. */
function changed(name) {
  const fill = (values) => Object.entries(values).forEach(([key, value]) => { field[key].value = value; });
  if (name === "model" && about()) fill({ params: short(about().parameters / 1e6), batch: about().batch });
  if (name === "params") fill({ model: "" });
  if (!about() && field.device.value) fill({ device: "" });
  if (name === "link" && field.link.value) fill({ rate: known.links[field.link.value] / 1e9 });
  if (name === "rate") fill({ link: "" });
  if (name === "compute_ms") fill({ device: "" });
  if (name === "slider") fill({ rho: short(10 ** number("slider")) });
  if (name === "rho" || name === "slider") fill({ link: "", rate: "", device: "", compute_ms: "" });
  else if (["link", "rate", "device", "compute_ms"].includes(name)) fill({ rho: "" });
  if (field.device.value) fill({ compute_ms: short(1e3 * computing()) });
}

const computing = () => (about().flop * number("batch")) / (about().share * known.devices[field.device.value]);

function question() {
  const asked = { model: field.model.value, parameters: about()?.parameters ?? Math.round(1e6 * number("params")), workers: number("workers") };
  const byRho = field.rate.value === "" && field.compute_ms.value === "";
  const plain = known.studies[0].arms.find((arm) => arm.role === "reference").method;
  if (!(asked.parameters >= 1 && asked.workers >= 2 && Number.isInteger(asked.workers))) return null;
  const nbytes = predict(sent(plain, asked), 1, 1, 0).nbytes;
  asked.compute = byRho ? 1 : field.device.value ? computing() : number("compute_ms") / 1e3;
  asked.rate = byRho ? (8 * nbytes) / (known.efficiency * number("rho")) : 1e9 * number("rate");
  if (!(asked.compute > 0 && asked.rate > 0 && asked.rate < Infinity)) return null;
  asked.plain = predict([[1, nbytes]], asked.rate, asked.compute, 0);
  asked.rho = asked.plain.none / asked.compute - 1;
  asked.byRho = byRho;
  return asked;
}

/* Names are those of the options of `bandwise advise`. */
function options(asked) {
  const found = asked.model ? [["model", asked.model]] : [["params", String(asked.parameters)]];
  found.push(["workers", String(asked.workers)]);
  if (asked.byRho) return [...found, ["rho", field.rho.value]];
  found.push(["rate", field.link.value || `${field.rate.value}gbit`]);
  return found.concat(field.device.value ? [["device", field.device.value], ["batch", field.batch.value]] : [["compute_ms", field.compute_ms.value]]);
}

function read() {
  const given = new URLSearchParams(location.search);
  if (![...given].length) return;
  for (const name of ["link", "rate", "device", "compute_ms", "rho", "model"]) field[name].value = "";
  const units = { bit: 1e-9, kbit: 1e-6, mbit: 1e-3, gbit: 1, tbit: 1e3 }, rate = given.get("rate") ?? given.get("link");
  const parts = /^([0-9.]+)([kmg]?bit)$/i.exec(rate ?? "");
  for (const name of ["workers", "compute_ms", "rho"]) if (given.has(name)) field[name].value = given.get(name);
  if (given.has("params")) field.params.value = Number(given.get("params")) / 1e6;
  if (Object.hasOwn(known.models, given.get("model") ?? "")) { field.model.value = given.get("model"); changed("model"); }
  if (given.has("batch")) field.batch.value = given.get("batch");
  if (Object.hasOwn(known.links, rate ?? "")) { field.link.value = rate; changed("link"); }
  else if (parts) field.rate.value = Number(parts[1]) * units[parts[2].toLowerCase()];
  if (Object.hasOwn(known.devices, given.get("device") ?? "")) { field.device.value = given.get("device"); changed("device"); }
}

/* ---- the answer */

function row(cells) {
  const line = document.createElement("tr");
  cells.forEach((words, i) => {
    const cell = line.appendChild(document.createElement(i ? "td" : "th"));
    if (i) cell.className = "dt-type-numeric"; else cell.scope = "row";
    cell.textContent = words;
  });
  return line;
}

function show() {
  const put = (id, words) => { document.getElementById(id).textContent = words; };
  const asked = question();
  document.getElementById("answer").hidden = !asked;
  if (!asked) return put("verdict", "Give a model, at least two workers, and the rate of the link with the time of computing, or rho instead of both.");
  const study = fitting(asked), refused = [], all = [];
  for (const arm of study.arms.filter((one) => one.role !== "reference")) {
    const kinds = arm.workers > 1 ? sent(arm.method, asked) : [[1, 0]];
    if (!kinds) { refused.push(arm.name); continue; }
    const kappa = kappaFor(arm, asked), found = predict(kinds, asked.rate, asked.compute * arm.batch, kappa);
    const time = Object.fromEntries(ENDS.map((end) => [end, (arm.length * found[end]) / asked.plain[end]]));
    all.push({ arm, time, nbytes: found.nbytes, own: own(arm, kappa) });
  }
  const judged = all.filter(({ arm }) => arm.worth !== null && (arm.role === "method" || arm.role === "alternative"));
  const found = Object.fromEntries(ENDS.map((end) => [end, verdict(study, judged, asked, end)]));
  const said = answer(asked.rho, found), [first] = said.split(", because"), strong = document.createElement("strong");
  strong.textContent = first;
  document.getElementById("verdict").replaceChildren(strong, said.slice(first.length));
  const most = ENDS.map((end) => digits(bound(asked.rho, end)));
  put("bound", `At any size a step that sends less is at most ${most[0]} times as fast where nothing overlaps, ${most[1]} where all does.`);
  const device = field.device.value, taken = about();
  put("assumed", device ? `${taken.words}: ${digits(taken.parameters / 1e6, 4)} M parameters; ${field.batch.value} ${taken.examples} a worker and step compute for ${digits(1e3 * asked.compute, 3)} ms at ${taken.share} of the peak of ${known.devices[device] / 1e12} TFLOP/s of ${device} (assumed; your own number overrules it). What methods compute besides is that measured by the parameter on ${known.on_gpu}, where it was.` : "");
  const nets = (one, end) => (one.arm.worth === null ? "-" : interval(ends(one.arm).map((worth) => worth / one.time[end])));
  all.sort((one, other) => ends(other.arm)[0] / other.time.none - ends(one.arm)[0] / one.time.none);
  const best = all.filter(({ arm }) => arm.role !== "alternative").slice(0, known.best);
  for (const [id, few] of [["best", true], ["others", false]]) {
    const shown = all.filter((one) => (one.arm.role === "alternative" || best.includes(one)) === few);
    document.getElementById(id).replaceChildren(...shown.map((one) => row([
      one.arm.name, one.arm.worth === null ? "-" : interval(ends(one.arm)), nets(one, "none"), nets(one, "all"), digits(one.nbytes / 1e6, 4), one.arm.worth === null ? "-" : one.arm.n,
    ])));
  }
  put("refused", refused.length ? `What they send could not be traced for a model of this size: ${refused.join("; ")}.` : "");
  const given = options(asked), here = `?${new URLSearchParams(given)}`;
  put("command", `bandwise advise ${given.map(([name, value]) => `--${name.replace("_", "-")} ${value}`).join(" ")}`);
  history.replaceState(null, "", here);
  document.getElementById("link").href = here;
  if (!asked.byRho) field.rho.value = short(asked.rho);
  field.slider.value = Math.log10(asked.rho);
}

form.hidden = false;
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", (event) => { changed(event.target.name); show(); });
["model", "link", "device"].forEach(changed);
read();
show();
