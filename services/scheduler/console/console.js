// Polls the state once a second while the page is visible. Each request may reach another replica
// behind the address, so the states of all replicas are kept and shown together.

import { engine, offBy, pairs, scatter } from "/console/engines.js";
import { $, say, settleChildren } from "/console/format.js";
import { showRequests } from "/console/requests.js";
import { KEY, Refused, ask } from "/console/server.js";

const SILENT_MS = 30_000;
const replicas = new Map();

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

// Merges what several replicas say of one engine: its state is from the latest, and the requests
// are those that each replica sent it.
function merged(ofOne) {
  const minute = {};
  for (const name of Object.keys(ofOne[0].last_minute)) {
    minute[name] = ofOne.flatMap((each) => each.last_minute[name]);
  }
  return { ...ofOne[0], last_minute: minute, dispatched_total: sum(ofOne.map((each) => each.dispatched_total)) };
}

// The states of all replicas heard from lately, as one; the latest counts first.
function together() {
  for (const [name, heard] of replicas) {
    if (performance.now() - heard.at > SILENT_MS) replicas.delete(name);
  }
  const states = [...replicas.values()].sort((a, b) => b.at - a.at).map((heard) => heard.state);
  const ids = states[0].instances.map((each) => each.instance_id);
  return {
    names: states.map((state) => state.replica_id).sort(),
    policy: states[0].policy,
    requests_total: sum(states.map((state) => state.requests_total)),
    in_progress: sum(states.map((state) => state.in_progress)),
    given: sum(states.map((state) => state.targets.given)),
    met: sum(states.map((state) => state.targets.met)),
    instances: ids.map((id) =>
      merged(states.flatMap((state) => state.instances.filter((each) => each.instance_id === id))),
    ),
    requests: states.flatMap((state) => state.requests).sort((a, b) => b.placed_unix_s - a.placed_unix_s),
  };
}

function show(state) {
  const placed = sum(state.instances.map((each) => each.dispatched_total));
  const who = state.names.length === 1 ? state.names[0] : `${state.names.length} replicas (${state.names.join(", ")})`;
  say("summary", `${who}, policy ${state.policy}: ${state.requests_total} requests, ${state.in_progress} in progress`);
  const kept = Math.round((100 * state.met) / state.given);
  say(
    "targets",
    state.given
      ? `${kept}% of ${state.given} answers with targets kept them, last minute.`
      : "No answer with targets in the last minute.",
  );
  settleChildren($("engines"), state.instances.map((each) => engine(each, placed)));
  const met = state.instances.flatMap((each) => pairs(each, "e2e_s"));
  say(
    "errors",
    met.length
      ? `${met.length} answers; end-to-end latency off by ${Math.round(100 * offBy(met))}% (median).`
      : "No answer in the last minute.",
  );
  scatter(met);
  showRequests(state.requests);
}

async function hear() {
  const state = await ask("/console/state");
  replicas.set(state.replica_id, { at: performance.now(), state });
}

async function refresh() {
  await hear();
  $("login").hidden = true;
  show(together());
}

async function tick() {
  if (document.visibilityState === "visible") {
    try {
      await refresh();
      say("problem", "");
    } catch (error) {
      if (error instanceof Refused) $("login").hidden = false;
      say("problem", error.message);
    }
  }
  setTimeout(tick, 1000);
}

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value);
  $("key").value = "";
});
tick();
