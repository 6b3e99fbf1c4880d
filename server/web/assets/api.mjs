// Calls of the API. Requests and responses are the messages of the proto files as JSON.

const STORED = 'scalelab-key';
// Errors after which a stream is worth another attempt.
const PASSING = new Set(['UNAVAILABLE', 'DEADLINE_EXCEEDED', 'RESOURCE_EXHAUSTED', 'CANCELLED', 'UNKNOWN', 'INTERNAL', 'ABORTED']);
// In a stream, the server sends at least a comment every 15 s.
const SILENCE_MS = 45_000;
// After a stream that had messages and was open for this time, the next one is opened soon.
const STEADY_MS = 10_000;
// The server reads a request within 30 s, ends its call after 2 minutes, and sends the response within 30 s.
const ANSWER_MS = 180_000;

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

// Sends a request and returns its only response. If there is none, shows after SILENCE_MS that the server does not answer, and
// fails after ANSWER_MS.
async function ask(path, body, signal) {
  const attempt = new AbortController();
  const unlink = link(signal, attempt);
  const notice = setTimeout(() => connection(false), SILENCE_MS);
  try {
    const answer = await within(ANSWER_MS, attempt, post(path, body, attempt.signal).then((response) => response.json()));
    connection(true);
    return answer;
  } catch (error) {
    if (error instanceof ApiError && error.code !== 'UNAVAILABLE') connection(true);  // the server has answered
    if (signal?.aborted || !attempt.signal.aborted) throw error;
    throw new ApiError({code: 'UNAVAILABLE',
      message: `the server has not answered for ${ANSWER_MS / 60_000} minutes; a change that you requested may have been made`});
  } finally {
    clearTimeout(notice);
    unlink();
  }
}

// Aborts the attempt when the signal is aborted. Returns a function that ends this.
function link(signal, attempt) {
  const stop = () => attempt.abort();
  if (signal?.aborted) stop();
  signal?.addEventListener('abort', stop);
  return () => signal?.removeEventListener('abort', stop);
}

// Aborts the attempt unless the promise is settled within `ms` milliseconds.
function within(ms, attempt, promise) {
  const timer = setTimeout(() => attempt.abort(), ms);
  return promise.finally(() => clearTimeout(timer));
}

function loseLogin() {
  localStorage.removeItem(STORED);
  dispatchEvent(new Event('scalelab-logged-out'));
}

/** Logs in with {code} of a link, or with {token}. */
export async function logIn(secret) {
  const {key} = await ask('login', secret);
  localStorage.setItem(STORED, key);
}

export async function logOut() {
  await ask('logout', {}).catch(() => null);
  loseLogin();
}

/** Calls a unary method, for example call('GetStudy', {name: 'studies/1'}). */
export async function call(method, request = {}, signal = undefined) {
  return ask(`api/${method}`, request, signal);
}

/** The responses of a method that lists pages, one after another. */
export async function* pages(method, request, signal) {
  for (let token = ''; ;) {
    const answer = await call(method, {...request, page_token: token}, signal);
    yield answer;
    token = answer.next_page_token;
    if (!token) return;
  }
}

/** All messages of a stream that ends by itself. */
export async function collect(method, request, signal) {
  const messages = [];
  const attempt = new AbortController();
  const unlink = link(signal, attempt);
  try {
    for await (const event of events(`api/${method}`, request, attempt)) {
      if (event.type === 'end') return messages;
      if (event.type === 'error') throw fromEvent(event);
      messages.push(JSON.parse(event.data));
    }
  } catch (error) {
    if (signal?.aborted || !attempt.signal.aborted) throw error;
  } finally {
    attempt.abort();
    unlink();
  }
  throw new ApiError({code: 'UNAVAILABLE', message: 'the connection to the server was lost'});
}

/**
 * Calls onMessage with each message of a stream of states, until the stream ends or the signal is aborted. Connects again
 * after a lost connection, with exponential backoff, and closes the stream while the page is hidden: browsers allow six
 * connections to a server.
 */
export async function follow(method, request, onMessage, signal) {
  let delay = 500;
  while (!signal.aborted) {
    await untilVisible(signal);
    const opened = Date.now();
    let answered = false;
    const attempt = new AbortController();
    const unlink = link(signal, attempt);
    const hide = () => document.hidden && attempt.abort();
    document.addEventListener('visibilitychange', hide);
    try {
      for await (const event of events(`api/${method}`, request, attempt)) {
        answered = true;
        connection(true);
        if (event.type === 'end') return;
        if (event.type === 'error') throw fromEvent(event);
        onMessage(JSON.parse(event.data));
      }
    } catch (error) {
      if (!passes(error)) throw error;
    } finally {
      attempt.abort();
      unlink();
      document.removeEventListener('visibilitychange', hide);
    }
    if (signal.aborted || document.hidden) continue;
    connection(false);
    if (answered && Date.now() - opened > STEADY_MS) delay = 500;
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

// The server-sent events of a response. Aborts the attempt if the server sends nothing for SILENCE_MS.
async function* events(path, request, attempt) {
  const response = await within(SILENCE_MS, attempt, post(path, request, attempt.signal));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  while (true) {
    const {done, value} = await within(SILENCE_MS, attempt, reader.read());
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
