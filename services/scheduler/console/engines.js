// An engine with its requests as lanes, and predicted against actual latencies.

import { $, element, median, quantile, seconds } from "/console/format.js";

const MOST_BARS = 48;

export function pairs(instance, kind) {
  const minute = instance.last_minute;
  return minute[`predicted_${kind}`]
    .map((predicted, index) => [predicted, minute[kind][index]])
    .filter(([predicted, actual]) => predicted > 0 && actual > 0);
}

export function offBy(found) {
  return median(found.map(([predicted, actual]) => Math.abs(predicted / actual - 1)));
}

function facts(instance, placed) {
  const lines = [];
  if (instance.running !== null) {
    const kv = Math.round(100 * instance.kv_used_ratio);
    lines.push(`${instance.running} running, ${instance.waiting} waiting, ${kv}% of KV memory`);
  }
  const ttfts = instance.last_minute.ttft_s.filter((each) => each > 0);
  if (ttfts.length) {
    lines.push(`TTFT ${seconds(quantile(ttfts, 0.5))}, P99 ${seconds(quantile(ttfts, 0.99))}`);
  }
  const met = pairs(instance, "e2e_s");
  if (met.length) {
    const [predicted, actual] = [0, 1].map((side) => seconds(median(met.map((each) => each[side]))));
    lines.push(`end to end: predicted ${predicted}, actual ${actual}, off by ${Math.round(100 * offBy(met))}%`);
  }
  if (placed) lines.push(`${Math.round((100 * instance.dispatched_total) / placed)}% of placements`);
  if (instance.calibration_steps !== null) lines.push(`learned from ${instance.calibration_steps} steps`);
  if (instance.unpredicted) lines.push(`not predicted: ${instance.unpredicted}`);
  if (instance.approximations?.length) lines.push(`not modelled: ${instance.approximations.join(", ")}`);
  return lines;
}

function bar(left, right, name) {
  const span = element("span", "", name);
  span.style.left = `${100 * left}%`;
  span.style.width = `${Math.max(0.4, 100 * (right - left))}%`;
  return span;
}

function lanes(instance) {
  const box = element("div");
  const found = instance.lanes;
  if (!found.length) return box;
  const horizon = Math.max(1, quantile(found.map((lane) => lane[3]), 0.95));
  const rows = element("div", "", "lanes");
  rows.setAttribute("role", "img");
  const waiting = found.filter((lane) => lane[1] === 0).length;
  rows.setAttribute(
    "aria-label",
    `${found.length} requests, ${waiting} of them without a token; the last is expected to end in ` +
      seconds(Math.max(...found.map((lane) => lane[3]))),
  );
  for (const [, , first, last] of found.slice(0, MOST_BARS)) {
    const lane = element("div", "", "lane");
    const [from, to] = [first, last].map((each) => Math.min(1, each / horizon));
    if (from > 0) lane.append(bar(0, from, "waiting"));
    lane.append(bar(from, to, "running"));
    rows.append(lane);
  }
  const axis = element("p", "", "axis");
  axis.append(element("span", "now"), element("span", `in ${seconds(horizon)}`));
  box.append(rows, axis);
  if (found.length > MOST_BARS) box.append(element("p", `and ${found.length - MOST_BARS} more`, "hint"));
  return box;
}

export function engine(instance, placed) {
  const article = element("article");
  const title = element("h3", `${instance.instance_id} `);
  title.append(element("span", instance.healthy ? "up" : "down", instance.healthy ? "up" : "down"));
  if (instance.emulated) title.append(element("span", " emulated", "hint"));
  article.append(title);
  for (const line of facts(instance, placed)) article.append(element("p", line));
  article.append(lanes(instance));
  return article;
}

export function scatter(found) {
  const svg = $("scatter");
  svg.replaceChildren();
  if (!found.length) return;
  const all = found.flat();
  const [low, high] = [Math.log(Math.min(...all)), Math.log(Math.max(...all))];
  const place = (value, size) => 8 + ((Math.log(value) - low) / (high - low || 1)) * (size - 16);
  const drawn = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    svg.append(made);
  };
  drawn("line", { x1: 8, y1: 192, x2: 312, y2: 8 });
  for (const [predicted, actual] of found) {
    drawn("circle", { cx: place(predicted, 320), cy: 200 - place(actual, 200), r: 3 });
  }
}
