"use strict";
// What models write as Markdown, as elements. Text is only ever set as text: what looks like HTML stays what was written.

const markdown = (() => {
  const element = (name, ...children) => {
    const made = document.createElement(name);
    for (const child of children) made.append(child);
    return made;
  };

  // Code, strong, emphasis, struck out, links; the first that fits from the left.
  const INLINE = new RegExp([
    /(?<tick>`+)(?<code>[^`]|[^`].*?[^`])\k<tick>(?!`)/, /\*\*(?=\S)(?<strong>.*?\S)\*\*(?!\*)/,
    /(?<!\p{N})\*(?=[^\s*])(?<star>[^*]*?[^\s*])\*(?!\p{N})/, /(?<![\p{L}\p{N}_])_(?=[^\s_])(?<line>[^_]*?[^\s_])_(?![\p{L}\p{N}_])/,
    /~~(?=\S)(?<gone>.*?\S)~~/, /\[(?<label>[^\[\]]+)\]\((?<to>https?:\/\/[^\s()]+)\)/, /\\(?<plain>[!-\/:-@\[-`{-~])/,
  ].map((each) => each.source).join("|"), "su");

  function link(label, to) {
    const made = element("a", ...inline(label));
    Object.assign(made, { href: to, target: "_blank", rel: "noopener noreferrer" });
    return made;
  }

  function inline(text) {
    const out = [];
    for (;;) {
      const found = INLINE.exec(text);
      if (!found) return [...out, text];
      const { code, strong, star, line, gone, label, to, plain } = found.groups;
      out.push(text.slice(0, found.index));
      if (code !== undefined) out.push(element("code", code));
      else if (strong !== undefined) out.push(element("strong", ...inline(strong)));
      else if (star ?? line) out.push(element("em", ...inline(star ?? line)));
      else if (gone !== undefined) out.push(element("s", ...inline(gone)));
      else if (label !== undefined) out.push(link(label, to));
      else out.push(plain);
      text = text.slice(found.index + found[0].length);
    }
  }

  /** Lines of one paragraph: a line's end stays one. */
  function lines(all) {
    return all.flatMap((line, i) => (i ? [element("br"), ...inline(line)] : inline(line)));
  }

  // No two parts of an expression may take the same characters one after the other: a line that fits none would be cut in all ways.
  const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/s;
  const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/s;
  const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
  const QUOTE = /^ {0,3}> ?/;
  const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(?=\S)/;
  const NESTED = 20;
  const LINES = 2000;
  const LINE_CHARS = 20_000;

  function cells(line) {
    const inner = line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
    return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  }

  const isTable = (all, i) => all[i].includes("|") && (all[i + 1] ?? "").includes("|")
    && cells(all[i + 1]).every((cell) => /^:?-+:?$/.test(cell));
  const begins = (all, i) => all[i].trim() === "" || [FENCE, HEADING, RULE, QUOTE, ITEM].some((each) => each.test(all[i])) || isTable(all, i);

  /** Lines from `from` on for which `goes` holds; where they end. */
  function run(all, from, goes) {
    let end = from;
    while (end < all.length && goes(all[end], end)) end += 1;
    return end;
  }

  function copier(text) {
    const copy = element("button", "Copy");
    copy.type = "button";
    copy.className = "copy";
    copy.onclick = () => navigator.clipboard.writeText(text).then(() => { copy.textContent = "Copied"; }, () => {});
    return copy;
  }

  function code(all, from, out) {
    const [, fence, about] = FENCE.exec(all[from]);
    const closes = (line) => line.trim().startsWith(fence) && line.trim().replaceAll(fence[0], "") === "";
    const end = run(all, from + 1, (line) => !closes(line));
    const text = all.slice(from + 1, end).join("\n");
    const title = element("div", element("span", about.trim().split(/\s/)[0]));
    title.className = "title";
    // Browsers have it for addresses that they trust.
    if (navigator.clipboard) title.append(copier(text));
    out.push(element("figure", title, element("pre", element("code", text))));
    return end + 1;
  }

  function table(all, from, out) {
    const row = (line, kind) => element("tr", ...cells(line).map((cell) => element(kind, ...inline(cell))));
    const end = run(all, from + 2, (line) => line.includes("|"));
    const body = all.slice(from + 2, end).map((line) => row(line, "td"));
    out.push(element("table", element("thead", row(all[from], "th")), element("tbody", ...body)));
    return end;
  }

  /** Items of one kind; what is further in than the marker, or goes on at once, belongs to the item. */
  function list(all, from, out, depth) {
    const [, indent, mark] = ITEM.exec(all[from]);
    const ordered = /\d/.test(mark);
    const inThis = (line) => {
      const item = ITEM.exec(line);
      return item && item[1].length <= indent.length + 1 && /\d/.test(item[2]) === ordered && !RULE.test(line);
    };
    const made = element(ordered ? "ol" : "ul");
    if (ordered) made.start = parseInt(mark, 10);
    let at = from;
    while (at < all.length && inThis(all[at])) {
      const width = ITEM.exec(all[at])[0].length;
      const deeper = (line) => line.search(/\S/) > indent.length + 1;
      const end = run(all, at + 1, (line, i) =>
        line.trim() === "" ? i + 1 < all.length && deeper(all[i + 1]) : deeper(line) || !begins(all, i));
      const inner = all.slice(at + 1, end).map((line) => line.slice(Math.min(width, Math.max(0, line.search(/\S/)))));
      made.append(element("li", ...blocks([all[at].slice(width), ...inner], depth + 1)));
      at = end;
      // Loose lists have empty lines between their items.
      const next = run(all, at, (line) => line.trim() === "");
      if (next < all.length && inThis(all[next])) at = next;
    }
    out.push(made);
    return at;
  }

  function quote(all, from, out, depth) {
    const end = run(all, from, (line, i) => QUOTE.test(line) || !begins(all, i));
    const inner = all.slice(from, end).map((line) => line.replace(QUOTE, ""));
    out.push(element("blockquote", ...blocks(inner, depth + 1)));
    return end;
  }

  function block(all, from, out, depth) {
    const line = all[from];
    if (line.trim() === "") return from + 1;
    if (FENCE.test(line)) return code(all, from, out);
    if (RULE.test(line)) { out.push(element("hr")); return from + 1; }
    const heading = HEADING.exec(line);
    if (heading) {
      const text = heading[2].trimEnd().replace(/#+$/, "").trimEnd();
      out.push(element(`h${Math.min(6, heading[1].length + 2)}`, ...inline(text)));
      return from + 1;
    }
    if (isTable(all, from)) return table(all, from, out);
    if (depth < NESTED && QUOTE.test(line)) return quote(all, from, out, depth);
    if (depth < NESTED && ITEM.test(line)) return list(all, from, out, depth);
    const end = run(all, from + 1, (_, i) => !begins(all, i));
    // Of very long ones nothing is looked for: each line is looked through once for each that may begin something.
    const said = all.slice(from, end).map((each) => each.trim());
    const plain = said.length > LINES || said.some((each) => each.length > LINE_CHARS);
    const paragraph = element("p");
    for (const part of plain ? [said.join("\n")] : lines(said)) paragraph.append(part);
    if (plain) paragraph.className = "plain";
    out.push(paragraph);
    return end;
  }

  function blocks(all, depth) {
    const out = [];
    for (let at = 0; at < all.length;) at = block(all, at, out, depth);
    return out;
  }

  /** Elements for a text, as far as it has come. */
  return (text) => blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
})();
