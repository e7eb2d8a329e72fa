// Requests to the server, with the admin key.

export const KEY = "foretell-admin-key";

export class Refused extends Error {}

export async function ask(path) {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store" });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const said = body.error?.message;
  if (answer.status === 401 || answer.status === 403) {
    throw new Refused(key ? (said ?? "the key is not taken") : "an admin key is needed");
  }
  throw new Error(said ?? `the scheduler answers ${answer.status}`);
}
