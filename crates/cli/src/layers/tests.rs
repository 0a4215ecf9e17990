use super::*;
use crate::args::Percent;
use crate::args::{BenchCommand, Cli, Command as Chosen};
use clap::{CommandFactory, Parser};
use std::os::unix::ffi::OsStringExt;

/// What comes of a command line, a file and variables.
fn settled(typed: &str, file: &str, env: &[(&str, &str)]) -> Result<Cli, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.toml");
    std::fs::write(&path, file).unwrap();
    let mut words: Vec<OsString> = typed.split(' ').map(OsString::from).collect();
    words.splice(1..1, ["--config".into(), path.into_os_string()]);
    let get = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    let layered = layered(&Cli::command(), words, &get).map_err(|error| error.to_string())?;
    Cli::try_parse_from(&layered.argv).map_err(|error| {
        let of = error.get(clap::error::ContextKind::InvalidArg).map(ToString::to_string);
        format!("{error} {:?}", layered.source(&of.unwrap_or_default()))
    })
}

/// Threads of a server.
fn threads(typed: &str, file: &str, env: &[(&str, &str)]) -> Option<usize> {
    match settled(typed, file, env).unwrap().command {
        Chosen::Serve(args) => args.engine.threads,
        _ => panic!("not a server"),
    }
}

#[test]
fn what_is_typed_wins_over_the_environment_over_the_file_over_the_default() {
    let (file, env) = ("threads = 3\n", [("BALLAST_THREADS", "5")]);
    assert_eq!(threads("ballast serve m", "", &[]), None);
    assert_eq!(threads("ballast serve m", file, &[]), Some(3));
    assert_eq!(threads("ballast serve m", file, &env), Some(5));
    assert_eq!(threads("ballast serve m --threads 7", file, &env), Some(7));
    assert_eq!(threads("ballast serve --threads=7 m", file, &env), Some(7));
    let sections = "threads = 3\n[serve]\nthreads = 4\n[batch]\nthreads = 9\n";
    assert_eq!(threads("ballast serve m", sections, &[]), Some(4), "a section wins over the top");
    assert_eq!(threads("ballast serve m", "[batch]\nthreads = 9\n", &[]), None);
}

#[test]
fn a_variable_has_every_name_of_its_flag_and_says_nothing_where_it_is_empty() {
    assert_eq!(threads("ballast serve m", "threads = 3\n", &[("BALLAST_THREADS", "")]), Some(3));
    let keys = |env: &[(&str, &str)]| match settled("ballast serve m", "", env).unwrap().command {
        Chosen::Serve(args) => args.api_key,
        _ => panic!("not a server"),
    };
    assert_eq!(keys(&[("BALLAST_API_KEY", "")]), [""], "which the server refuses: it would be open to all");
    let weights = |env: &[(&str, &str)]| settled("ballast serve m", "", env).map(drop);
    assert!(weights(&[("BALLAST_DTYPE", "bf16")]).is_ok());
    let wrong = weights(&[("BALLAST_DTYPE", "nonsense")]).unwrap_err();
    assert!(wrong.contains("BALLAST_DTYPE"), "{wrong}");
    assert!(
        weights(&[("BALLAST_DTYPE", "nonsense"), ("BALLAST_WEIGHTS", "bf16")]).is_ok(),
        "its own name wins"
    );
}

#[test]
fn a_file_is_found_whatever_bytes_its_path_has() {
    let typed = ["ballast".into(), OsString::from_vec(b"--config=/nope\xff".to_vec()), "stores".into()];
    let layered = layered(&Cli::command(), typed.to_vec(), &|_| None);
    assert!(layered.unwrap_err().to_string().contains("cannot read the configuration"));
    let absent = |name: &str| (name == "BALLAST_CONFIG").then(OsString::new);
    assert!(super::layered(&Cli::command(), vec!["ballast".into(), "stores".into()], &absent).is_ok());
}

#[test]
fn a_flag_wins_over_its_opposite_in_a_layer_below() {
    let off = |typed: &str, file: &str, env: &[(&str, &str)]| match settled(typed, file, env)?.command {
        Chosen::Serve(args) => Ok(args.engine.no_enable_prefix_caching),
        _ => Err("not a server".to_string()),
    };
    let (no, yes) = ("no-enable-prefix-caching = true\n", "enable-prefix-caching = true\n");
    let (env_no, env_yes) = ("BALLAST_NO_ENABLE_PREFIX_CACHING", "BALLAST_ENABLE_PREFIX_CACHING");
    let typed_no = "ballast serve m --no-enable-prefix-caching";
    assert_eq!(off("ballast serve m", no, &[]), Ok(true));
    assert_eq!(off("ballast serve m --enable-prefix-caching", no, &[]), Ok(false));
    assert_eq!(off("ballast serve m --enable-prefix-caching", no, &[(env_no, "1")]), Ok(false));
    assert_eq!(off(typed_no, yes, &[(env_yes, "1")]), Ok(true));
    assert_eq!(off("ballast serve m", no, &[(env_yes, "1")]), Ok(false));
    assert_eq!(off("ballast serve m", no, &[(env_yes, "0")]), Ok(true), "off excludes nothing");
    assert_eq!(off("ballast serve m", no, &[(env_no, "0")]), Ok(false));
    // Two of one layer are a mistake that somebody has to look at.
    assert!(off("ballast serve m", &format!("{no}{yes}"), &[]).is_err());
    assert!(off("ballast serve m", "", &[(env_yes, "1"), (env_no, "1")]).is_err());
    assert!(off(&format!("{typed_no} --enable-prefix-caching"), "", &[]).is_err());
}

#[test]
fn every_kind_of_value_can_be_set() {
    let file = "model = \"m\"\nport = 1\nhost = \"::1\"\nserved-model-name = [\"a\", \"b\"]\nspool_dir = \"x\"\n\
                no-enable-prefix-caching = true\npercent = [50, 0, 100, 0, 100, 0]\nrequest-timeout = 2.5\n\
                memory = \"2GiB\"\ntemperature = -1\n";
    let Chosen::Serve(args) = settled("ballast serve", file, &[]).unwrap().command else { panic!() };
    assert_eq!((args.model.name(), args.port, args.host.as_str()), (Some("m"), 1, "::1"));
    assert_eq!(
        (args.served_model_name, args.engine.percent),
        (
            vec!["a".into(), "b".into()],
            Some([50, 0, 100, 0, 100, 0].map(|whole| Percent::of_parts(whole * 10_000)).to_vec())
        )
    );
    assert!(args.engine.no_enable_prefix_caching && args.spool_dir.is_some());
    assert_eq!(args.request_timeout.unwrap().as_millis(), 2500);
    let env = [
        ("BALLAST_PERCENT", "1 2 3 4 5 6.5"),
        ("BALLAST_SERVED_MODEL_NAME", "[\"c\", \"d e\"]"),
        ("BALLAST_NO_ENABLE_PREFIX_CACHING", "off"),
        ("BALLAST_MODEL", "n"),
        ("BALLAST_API_KEY", "[not a list"),
    ];
    let Chosen::Serve(args) = settled("ballast serve", file, &env).unwrap().command else { panic!() };
    assert_eq!((args.model.name(), args.engine.no_enable_prefix_caching), (Some("n"), false));
    assert_eq!(args.served_model_name, ["c", "d e"]);
    assert_eq!(
        (args.engine.percent.unwrap()[5].to_string().as_str(), args.api_key),
        ("6.5", vec!["[not a list".to_string()])
    );
    let Chosen::Bench(BenchCommand::Serve(args)) =
        settled("ballast bench serve", "api-key = [\"k1\", \"k2\"]\n", &[]).unwrap().command
    else {
        panic!()
    };
    assert_eq!(args.server.api_key.as_deref(), Some("k1"), "a client shows one of a server's keys");
    let Chosen::Run(args) =
        settled("ballast run m", "prompt = \"--hi\"\nstop = [\"-x\"]\n", &[]).unwrap().command
    else {
        panic!()
    };
    assert_eq!((args.model.as_deref(), args.prompt.as_deref()), (Some("m"), Some("--hi")));
    assert_eq!(args.sampling.stop, ["-x"]);
}

/// What a file or a variable names is asked, as long as no other model is typed.
#[test]
fn a_prompt_alone_is_for_the_model_of_a_layer_above_the_default() {
    let asked = |words: &[&str], file: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("b.toml");
        std::fs::write(&path, file).unwrap();
        let typed = ["ballast", "run", "--config"].into_iter().map(OsString::from);
        let typed = typed.chain([path.into_os_string()]).chain(words.iter().map(OsString::from));
        let argv = layered(&Cli::command(), typed.collect(), &|_| None).unwrap().argv;
        match Cli::try_parse_from(argv).unwrap().command {
            Chosen::Run(args) => (args.model, args.prompt),
            _ => panic!("another command"),
        }
    };
    let some = |word: &str| Some(word.to_string());
    let file = "model = \"m\"\n";
    assert_eq!(asked(&["Why so?"], file), (some("m"), some("Why so?")));
    assert_eq!(asked(&["Why so?", "--threads", "2"], file), (some("m"), some("Why so?")));
    assert_eq!(asked(&["other"], file), (some("other"), None));
    assert_eq!(asked(&["other", "Why so?"], file), (some("other"), some("Why so?")));
    assert_eq!(asked(&["a folder/model"], file), (some("a folder/model"), None));
    assert_eq!(asked(&["Why so?"], ""), (some("Why so?"), None), "which `run` refuses");
    let both = "model = \"m\"\nprompt = \"Well?\"\n";
    assert_eq!(asked(&["Why so?"], both), (some("m"), some("Why so?")));
    assert_eq!(asked(&[], both), (some("m"), some("Well?")));
}

#[test]
fn commands_below_commands_have_sections_too() {
    let file =
        "[bench.serve]\nnum-prompts = 7\ngoodput = [\"ttft:5\", \"tpot:6\"]\n[bench.throughput]\nreps = 2\n";
    let Chosen::Bench(crate::args::BenchCommand::Serve(args)) =
        settled("ballast bench serve", file, &[]).unwrap().command
    else {
        panic!()
    };
    assert_eq!((args.traffic.num_prompts, args.report.goodput.len()), (Some(7), 2));
    let Chosen::Batch(args) =
        settled("ballast batch merge a b -o c", "[batch]\nmodel = \"m\"\nthreads = 2\n", &[])
            .unwrap()
            .command
    else {
        panic!()
    };
    assert!(args.command.is_some(), "a section does not reach below its command");
}

#[test]
fn a_model_for_all_commands_is_no_name_in_requests() {
    let readme = include_str!("../../../../README.md");
    let file = readme.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let Chosen::Serve(args) = settled("ballast serve", file, &[]).unwrap().command else { panic!() };
    assert_eq!((args.model.name(), args.port), (Some("smollm2"), 9000));
    let asked = |file: &str, env: &[(&str, &str)]| match settled("ballast bench serve", file, env) {
        Ok(Cli { command: Chosen::Bench(crate::args::BenchCommand::Serve(args)), .. }) => args.server,
        _ => panic!("not a benchmark of a server"),
    };
    assert_eq!((asked(file, &[]).model, asked(file, &[]).port), (None, 9000));
    assert_eq!(asked("", &[("BALLAST_MODEL", "m")]).model, None);
    assert_eq!(asked("[bench.serve]\nmodel = \"m\"\n", &[]).model.as_deref(), Some("m"));
}

#[test]
fn the_address_that_kubernetes_tells_is_no_port() {
    let port = |value: &str| {
        let settled = settled("ballast serve m", "", &[("BALLAST_PORT", value)]).ok()?;
        let Chosen::Serve(args) = settled.command else { panic!() };
        Some(args.port)
    };
    assert_eq!(port("tcp://10.0.0.1:8000"), Some(8000));
    assert_eq!((port("9000"), port("tcp")), (Some(9000), None));
}

#[test]
fn what_is_no_flag_is_named_with_the_nearest() {
    let refused = |file: &str| settled("ballast serve m", file, &[]).err().unwrap();
    for (file, says) in [
        ("thread = 1", "did you mean `threads`?"),
        ("[serve]\nmax_num_seq = 1", "in [serve] is no flag: did you mean `max-num-seqs`?"),
        ("[serve]\nreps = 1", "is no flag"),
        ("[sirve]\nport = 1", "did you mean [serve]?"),
        ("[bench.laitency]\nreps = 1", "did you mean [latency]?"),
        ("config = \"x\"", "is no flag"),
        ("[bench]\nreps = 1", "this command takes none"),
        ("port = [1, 2]", "port: expected one value"),
        ("port = 1979-05-27", "port: expected text or numbers"),
        ("no-enable-prefix-caching = 1", "expected true or false"),
        ("percent = [1, 2]", "expected 6 values"),
        ("port = ", "is no TOML"),
    ] {
        assert!(refused(file).contains(says), "{file}: {}", refused(file));
    }
    assert!(settled("ballast serve m", "ignore-eos = true", &[]).is_ok(), "other commands have it");
    assert!(refused("port = 70000").contains("b.toml"), "{}", refused("port = 70000"));
    let env = settled("ballast serve m", "", &[("BALLAST_NO_ENABLE_PREFIX_CACHING", "maybe")]).err().unwrap();
    assert!(env.contains("expected true or false"), "{env}");
}
