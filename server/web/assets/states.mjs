// The states of studies and runs.

const FINAL = ['SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED'];

/** Returns whether the study or run has ended. */
export const isFinal = ({state}) => FINAL.includes(state);
