// Numbers, as people read them.

/** A duration: 0.042 s, 7.3 s, 2 min 5 s, 3 h 10 min. */
export function seconds(s) {
  if (s < 0) return `-${seconds(-s)}`;
  if (s < 1) return `${s.toFixed(3)} s`;
  if (s < 60) return `${s.toFixed(1)} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(whole / 60);
  return `${Math.floor(minutes / 60).toLocaleString("en")} h ${minutes % 60} min`;
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}

/** Tokens in few characters: 950, 12.3 k, 1.2 M. */
export function tokens(number) {
  if (number < 1000) return String(Math.round(number));
  if (number < 1e6) return `${(number / 1000).toFixed(1)} k`;
  return `${(number / 1e6).toFixed(1)} M`;
}

export function perSecond(rate) {
  return `${rate < 10 ? rate.toFixed(1) : count(rate)} /s`;
}

/** When something was, by the clock of who looks; µs since the epoch. */
export function instant(at) {
  return new Date(at / 1000).toLocaleString();
}
