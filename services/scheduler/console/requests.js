// The latest requests, and the details of one, as in foretell explain.

import { $, element, row, seconds, table, wide } from "/console/format.js";
import { ask } from "/console/server.js";

const MOST_ROWS = 50;
const MOST_QUESTIONS = 24; // each may reach another replica, and only one remembers the request
const shown = new Map();
let opener = null;

const TARGETS = new Map([[true, "kept"], [false, "missed"], [null, "–"]]);

function cells(request) {
  return [
    request.instance_id + (request.attempts > 1 ? ` (attempt ${request.attempts})` : ""),
    request.state,
    seconds(request.predicted_ttft_s),
    seconds(request.ttft_s),
    seconds(request.predicted_e2e_s),
    seconds(request.e2e_s),
    TARGETS.get(request.met),
  ];
}

function newRow(request) {
  const button = element("button", request.request_id);
  button.type = "button";
  button.setAttribute("aria-haspopup", "dialog");
  button.addEventListener("click", () => {
    opener = button;
    open(request.request_id);
  });
  return row([button, ...cells(request)], true);
}

// Rows stay where they are and only their text changes, so that a focused one keeps the focus.
export function showRequests(requests) {
  const body = $("requests");
  const listed = new Map(requests.slice(0, MOST_ROWS).map((each) => [`${each.request_id} ${each.placed_unix_s}`, each]));
  for (const [key, known] of shown) {
    // Keep the row that has the focus, or gets it back when the open dialog closes.
    const visited = known.contains(document.activeElement) || ($("story").open && known.contains(opener));
    if (!listed.has(key) && !visited) {
      known.remove();
      shown.delete(key);
    }
  }
  let next = body.firstChild;
  for (const [key, request] of listed) {
    const known = shown.get(key);
    if (known) {
      cells(request).forEach((text, index) => {
        const cell = known.children[index + 1];
        if (cell.textContent !== text) cell.textContent = text;
      });
      next = known.nextSibling;
    } else {
      const made = newRow(request);
      shown.set(key, made);
      body.insertBefore(made, next);
    }
  }
}

async function find(id) {
  for (let asked = 1; ; asked += 1) {
    try {
      return await ask(`/explain/${encodeURIComponent(id)}`);
    } catch (error) {
      if (asked === MOST_QUESTIONS || !error.message.includes("does not remember")) throw error;
    }
  }
}

async function open(id) {
  const dialog = $("story");
  $("story-title").textContent = `Request ${id}`;
  $("told").replaceChildren(element("p", "Asking."));
  dialog.showModal();
  try {
    const told = await find(id);
    $("told").replaceChildren(...told.attempts.flatMap(attempt));
  } catch (error) {
    $("told").replaceChildren(element("p", error.message));
  }
}

function attempt(told) {
  const found = [
    element("h3", `Attempt ${told.attempt} went to ${told.instance_id}`),
    element("p", `${told.because}.`),
    candidates(told),
    element("p", happened(told)),
  ];
  if (told.floor) {
    found.push(
      element(
        "p",
        `An idle engine would have needed ${seconds(told.floor.ttft_s)} to the first token and ` +
          `${seconds(told.floor.e2e_s)} in all, for ${Math.round(told.floor.output_tokens)} tokens.`,
      ),
    );
  }
  return found;
}

function happened(told) {
  const end = told.happened;
  if (!end) return "It is in progress.";
  const ended = end.finished ? "It ended" : "It broke off";
  const tokens = end.output_tokens ? `, ${end.output_tokens} tokens` : "";
  const expected = `${Math.round(told.expected.output_tokens)} were expected`;
  return (
    `${ended} with status ${end.status || "none"}: first token after ${seconds(end.ttft_s)}, ` +
    `last after ${seconds(end.e2e_s)}${tokens} (${expected}).`
  );
}

function candidates(told) {
  const titles = ["Engine", "Running + waiting", "TTFT", "End to end", "Score", "Hindsight, end to end"];
  const rows = told.candidates.map((one) => {
    const load = one.load ? `${one.load.running} + ${one.load.waiting + one.load.reserved}` : "–";
    const made = row(
      [
        one.instance_id + (one.chosen ? " (chosen)" : ""),
        load,
        seconds(one.predicted?.ttft_s),
        seconds(one.predicted?.e2e_s),
        one.score === null ? "–" : one.score.toPrecision(3),
        seconds(one.hindsight?.e2e_s),
      ],
      true,
    );
    if (one.chosen) made.className = "chosen";
    return made;
  });
  const box = wide(`Candidates of attempt ${told.attempt}`, table(titles, rows));
  if (told.measure) box.append(element("p", `Score: ${told.measure}; the least is chosen.`, "hint"));
  return box;
}
