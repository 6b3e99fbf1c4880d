// Calls of the API. Requests and responses are the messages of the proto files as JSON.

const STORED = 'scalelab-key';
// Errors after which a stream is worth another attempt.
const PASSING = new Set(['UNAVAILABLE', 'DEADLINE_EXCEEDED', 'RESOURCE_EXHAUSTED', 'CANCELLED', 'UNKNOWN', 'INTERNAL', 'ABORTED']);
const SILENCE_MS = 45_000;  // the server sends at least a comment every 15 s

export class ApiError extends Error {
  constructor({code, message, violations}) {
    super(message);
    this.code = code;
    this.violations = violations ?? [];
  }
}

/** Returns whether another attempt may succeed after this error. */
export const passes = (error) => !(error instanceof ApiError) || PASSING.has(error.code);

export const loggedIn = () => localStorage.getItem(STORED) !== null;

async function post(path, body, signal) {
  const response = await fetch(path, {
    method: 'POST', signal, credentials: 'same-origin', body: JSON.stringify(body),
    headers: {'content-type': 'application/json', 'x-scalelab-key': localStorage.getItem(STORED) ?? ''},
  }).catch((error) => {
    if (signal?.aborted) throw error;
    throw new ApiError({code: 'UNAVAILABLE', message: 'the server does not answer'});
  });
  if (response.ok) return response;
  const error = new ApiError((await response.json().catch(() => null))?.error ??
    {code: 'UNKNOWN', message: `the server answered with status ${response.status}`});
  if (error.code === 'UNAUTHENTICATED') loseLogin();
  throw error;
}

function loseLogin() {
  localStorage.removeItem(STORED);
  dispatchEvent(new Event('scalelab-logged-out'));
}

/** Logs in with {code} of a link, or with {token}. */
export async function logIn(secret) {
  const response = await post('login', secret);
  localStorage.setItem(STORED, (await response.json()).key);
}

export async function logOut() {
  await post('logout', {}).catch(() => null);
  loseLogin();
}

/** Calls a unary method, for example call('GetStudy', {name: 'studies/1'}). */
export async function call(method, request = {}, signal = undefined) {
  return (await post(`api/${method}`, request, signal)).json();
}

/** All messages of a stream that ends by itself. */
export async function collect(method, request, signal) {
  const messages = [];
  const response = await post(`api/${method}`, request, signal);
  for await (const event of events(response.body)) {
    if (event.type === 'end') return messages;
    if (event.type === 'error') throw fromEvent(event);
    messages.push(JSON.parse(event.data));
  }
  throw new ApiError({code: 'UNAVAILABLE', message: 'the connection to the server was lost'});
}

/**
 * Calls onMessage with each message of a stream of states, until the stream ends or the signal is aborted. Connects again
 * after a lost connection, and closes the stream while the page is hidden: browsers allow six connections to a server.
 */
export async function follow(method, request, onMessage, signal) {
  let delay = 500;
  while (!signal.aborted) {
    await untilVisible(signal);
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    const hide = () => document.hidden && attempt.abort();
    signal.addEventListener('abort', stop);
    document.addEventListener('visibilitychange', hide);
    try {
      const response = await post(`api/${method}`, request, attempt.signal);
      for await (const event of events(response.body, attempt)) {
        delay = 500;
        connection(true);
        if (event.type === 'end') return;
        if (event.type === 'error') throw fromEvent(event);
        onMessage(JSON.parse(event.data));
      }
    } catch (error) {
      if (!passes(error)) throw error;
    } finally {
      attempt.abort();
      signal.removeEventListener('abort', stop);
      document.removeEventListener('visibilitychange', hide);
    }
    if (signal.aborted || document.hidden) continue;
    connection(false);
    await sleep(delay, signal);
    delay = Math.min(delay * 2, 10_000);
  }
}

/** Calls `work` now and then every `ms` milliseconds while the page is visible, until it returns false. */
export async function repeat(ms, work, signal) {
  while (!signal.aborted) {
    await untilVisible(signal);
    try {
      if (await work() === false) return;
      connection(true);
    } catch (error) {
      if (signal.aborted) return;
      if (!passes(error)) throw error;
      connection(false);
    }
    await sleep(ms, signal);
  }
}

/** Calls `work` until it succeeds, or fails for another reason than a server that does not answer. */
export async function persist(work, signal) {
  for (let failed = false; ; failed = true) {
    try {
      const result = await work();
      if (failed) connection(true);
      return result;
    } catch (error) {
      // A server that stops cancels the calls in progress.
      if (signal.aborted || !['UNAVAILABLE', 'CANCELLED'].includes(error.code)) throw error;
      connection(false);
    }
    await sleep(1000, signal);
  }
}

function connection(works) {
  dispatchEvent(new CustomEvent('scalelab-connection', {detail: works}));
}

function fromEvent(event) {
  const error = new ApiError(JSON.parse(event.data).error);
  if (error.code === 'UNAUTHENTICATED') loseLogin();
  return error;
}

export function sleep(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal?.removeEventListener('abort', done);
      resolve();
    }
    signal?.addEventListener('abort', done);
  });
}

function untilVisible(signal) {
  return new Promise((resolve) => {
    const done = () => {
      if (document.hidden && !signal.aborted) return;
      document.removeEventListener('visibilitychange', done);
      signal.removeEventListener('abort', done);
      resolve();
    };
    document.addEventListener('visibilitychange', done);
    signal.addEventListener('abort', done);
    done();
  });
}

// Splits the body of a response into server-sent events.
async function* events(body, attempt = null) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  while (true) {
    const silence = attempt && setTimeout(() => attempt.abort(), SILENCE_MS);
    const {done, value} = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    text += value;
    for (let end = text.indexOf('\n\n'); end >= 0; end = text.indexOf('\n\n')) {
      const event = {type: '', data: ''};
      for (const line of text.slice(0, end).split('\n')) {
        if (line.startsWith('event: ')) event.type = line.slice(7);
        if (line.startsWith('data: ')) event.data = line.slice(6);
      }
      text = text.slice(end + 2);
      if (event.data) yield event;
    }
  }
}
