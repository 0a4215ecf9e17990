//! What a grammar becomes, and what is wrong with one.

use super::{is_meant, to_lark};

#[test]
fn what_is_regular_is_one_expression_and_the_rest_are_rules() {
    for (text, lark) in [
        ("root ::= \"a\" root | \"\"", "start: r0\nr0: (T0 r0 | \"\")\nT0: /a/\n"),
        (
            "root ::= a{2,3} b # a comment\na ::= [a-z]+\nb ::= \"x\"\n  | \"yz\"",
            "start: T0\nT0: /(?:(?:[a-z])+){2,3}(?:x|yz)/\n",
        ),
        (
            "root ::= ws \"(\" root ws \")\" | [^\\]\\-x].\nws ::= \" \"*",
            "start: r0\nr0: (T0 r0 T1 | T2)\nT0: /(?:\\x{20})*\\x{28}/\nT1: /(?:\\x{20})*\\x{29}/\n\
             T2: /[^\\x{5D}\\x{2D}x](?s:.)/\n",
        ),
        ("root ::= root ws?\nws ::= \"\\u00e9\"", "start: r0\nr0: r0 T0?\nT0: /(?:\\x{E9})?/ & /(?s:.)+/\n"),
        ("root ::= \"\"", "start: \"\"\n"),
    ] {
        assert_eq!(to_lark(text).unwrap(), lark, "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (text, why) in [
        ("root ::= x", "no rule `x`"),
        ("x ::= \"a\"", "no rule `root`"),
        ("root ::= (\"a\"", "line 1: expected `)`"),
        ("root ::=\n [z-a]", "line 2: the range z-a goes backwards"),
        ("root ::= []", "a class is empty"),
        ("root ::= \"a", "a literal has no end"),
        ("root ::= \"\\q\"", "after `\\`"),
        ("root ::= \"\\xzz\"", "`zz` is no character's number"),
        ("root ::= \"a\"{3,2}", "expected {n}"),
        ("root ::= \"a\"{}", "expected {n}"),
        ("root ::= \"a\"{2,99999999999}", "too large"),
        ("root ::= \"a\"\nroot ::= \"b\"", "two rules `root`"),
        ("root = \"a\" ::=", "expected ::= after `root`"),
        ("root ::= *", "found `*`"),
    ] {
        let error = to_lark(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    assert!(to_lark(&deep).unwrap_err().to_string().contains("more than 100"));
    let many: String = (0..3000).map(|n| format!("r{n} ::= \"a\"\n")).collect();
    assert!(to_lark(&many).unwrap_err().to_string().contains("more than 2000 rules"));
    let doubling: String = (0..60).map(|n| format!("r{n} ::= r{} r{}\n", n + 1, n + 1)).collect();
    let lark = to_lark(&format!("root ::= r0\n{doubling}r60 ::= \"a\"")).unwrap();
    assert!(lark.len() < 100_000, "what would be too long stays rules: {}", lark.len());
}

#[test]
fn no_grammar_takes_more_stack_or_text_than_there_is() {
    let nested = |n: usize| format!("r{n} ::= {}r{}{}\n", "(.".repeat(90), n + 1, ")".repeat(90));
    let chained: String = (0..800).map(nested).collect();
    let chained = format!("root ::= r0\n{chained}r800 ::= \"a\" root");
    let error = to_lark(&chained).unwrap_err().to_string();
    assert!(error.contains("too deep"), "{error}");
    let long = "a".repeat(4000);
    let used: String = (0..2000).map(|n| format!("long \"{n}\" root | ")).collect();
    let error = to_lark(&format!("root ::= {used} \"b\"\nlong ::= \"{long}\"")).unwrap_err().to_string();
    assert!(error.contains("too long where it is used"), "{error}");
    assert!(to_lark("root ::= \"a\"{0} \"b\"").is_ok());
}

#[test]
fn it_is_known_by_its_first_rule() {
    for text in
        ["root ::= \"start: \" [a-z]+", "# start: here\n  root::= \"a\"", "root ::= start\nstart ::= \"b\""]
    {
        assert!(is_meant(text), "{text}");
    }
    for text in
        ["start: \"::=\"", "// a ::= b\nstart: /a/", "%ignore /a/\nx ::= y", "", "# only ::= this", "::= x"]
    {
        assert!(!is_meant(text), "{text}");
    }
}
