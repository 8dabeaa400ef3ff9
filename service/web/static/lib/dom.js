// preact and htm, under the names that the page uses.
export {
  h,
  html,
  render,
  useCallback,
  useEffect,
  useErrorBoundary,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "../vendor/htm-preact.js";

import { useEffect, useState } from "../vendor/htm-preact.js";

// Returns `value` as it was `milliseconds` ago, so that requests wait until typing or dragging pauses.
export function useDelayed(value, milliseconds) {
  const [delayed, setDelayed] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setDelayed(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return delayed;
}

// Changes whenever the theme does, for drawings that read colours from the style sheet.
export function useTheme() {
  const [count, setCount] = useState(0);
  useEffect(() => {
    const changed = () => setCount((before) => before + 1);
    const system = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("themechange", changed);
    system.addEventListener("change", changed);
    return () => {
      removeEventListener("themechange", changed);
      system.removeEventListener("change", changed);
    };
  }, []);
  return count;
}

// The width of an element in CSS pixels, 0 until it is laid out.
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver((entries) => setWidth(Math.floor(entries.at(-1).contentRect.width)));
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

// The value of a CSS custom property such as "--ink".
export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
