// All runs of a study, in the order of execution.
import {pages} from './api.mjs';
import {RUN_STATES} from './dom.mjs';

const PAGE = 5000;

/** The runs, without their specifications. */
export async function readRuns(parent, signal) {
  const runs = [];
  for await (const answer of pages('ListRuns', {parent, view: 'BRIEF', page_size: PAGE}, signal)) runs.push(...answer.runs ?? []);
  return runs;
}

/** The states of the runs: a string with a character for each. */
export async function readStates(parent, signal) {
  let states = '';
  for await (const answer of pages('ListRuns', {parent, view: 'STATES', page_size: 10_000}, signal)) states += atob(answer.states ?? '');
  return states;
}

/** The state of the run with this index in the result of readStates, or undefined. */
export const stateAt = (states, index) => RUN_STATES[states.charCodeAt(index) - 1];
