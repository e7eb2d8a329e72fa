// What would be with other engines or more traffic.

import { $, element, row, seconds, table, wide } from "/console/format.js";
import { ask } from "/console/server.js";

const TITLES = ["", "measured", "predicted", "with the change"];
const ROWS = [
  ["TTFT, median", (found) => seconds(found.ttft_p50_s)],
  ["TTFT, P99", (found) => seconds(found.ttft_p99_s)],
  ["End to end, median", (found) => seconds(found.e2e_p50_s)],
  ["End to end, P99", (found) => seconds(found.e2e_p99_s)],
  ["Goodput, a second", (found) => found.goodput_rps.toPrecision(3)],
  ["Within targets", (found) => `${Math.round(100 * found.within_ratio)}%`],
];

function show(found, replicas) {
  const time = found.span_s < 90 ? `${Math.round(found.span_s)} s` : `${Math.round(found.span_s / 60)} minutes`;
  const shared = replicas > 1 ? `, each taken ${replicas} times because there are ${replicas} replicas` : "";
  const columns = [found.measured, found.as_it_is, found.changed];
  const rows = ROWS.map(([name, told]) => row([name, ...columns.map((each) => (each ? told(each) : "–"))], true));
  return [
    wide("Measured and predicted", table(TITLES, rows)),
    element(
      "p",
      `From ${found.requests} requests to ${found.model} in ${time}${shared}, and ${found.engines} engines. ` +
        "Measured: those that one replica has seen answered. Requests without targets count as within.",
      "hint",
    ),
  ];
}

export function prepareWhatIf(countReplicas) {
  const form = $("what-if");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const query = new URLSearchParams(new FormData(form));
    const button = form.querySelector("button");
    button.disabled = true;
    $("answer").replaceChildren(element("p", "Simulating."));
    try {
      const replicas = await countReplicas();
      query.set("replicas", replicas);
      $("answer").replaceChildren(...show(await ask(`/console/what-if?${query}`), replicas));
    } catch (error) {
      $("answer").replaceChildren(element("p", error.message));
    }
    button.disabled = false;
  });
}
