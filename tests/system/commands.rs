//! The other commands: plan, bench, run, help, configuration.

use serde_json::Value;

use crate::program::{Server, complaint, output, run};

#[test]
fn a_plan_is_a_table_for_people_and_json_for_programs() {
    let table = output(&["plan", "--shards", "2"]);
    for word in ["stage", "layers", "weights", "0-3", "4-7"] {
        assert!(table.to_lowercase().contains(word), "{table}");
    }
    let plan: Value =
        serde_json::from_str(&output(&["plan", "--shards", "2", "--ctx", "1024", "--json"])).expect("JSON");
    assert_eq!(plan["stages"].as_array().map(Vec::len), Some(2));
    assert_eq!(plan["context"], 1024);
    // Two attention layers of 2 heads of 64, keys and values, two bytes each.
    assert_eq!(plan["key_value_per_token"], 2 * 2 * 2 * 64 * 2);
}

#[test]
fn a_bench_reports_rates_of_both_kinds() {
    let arguments = ["bench", "--prefill", "32,64", "--decode", "8", "--repeat", "1", "--users", "1,2", "--json"];
    let report: Value = serde_json::from_str(&output(&arguments)).expect("JSON");
    assert_eq!(report["prefill"].as_array().map(Vec::len), Some(2));
    assert_eq!(report["decode"].as_array().map(Vec::len), Some(2));
    for rate in report["prefill"].as_array().into_iter().chain(report["decode"].as_array()).flatten() {
        for field in ["tok_s", "roof", "of_roof"] {
            assert!(rate[field].as_f64().is_some_and(|rate| rate > 0.0), "{field} in {report}");
        }
    }
}

#[test]
fn a_profile_says_where_the_time_of_each_step_goes() {
    let arguments =
        ["bench", "--profile", "--decode", "2", "--depth", "8", "--prefill", "32", "--repeat", "1", "--json"];
    let report: Value = serde_json::from_str(&output(&arguments)).expect("JSON");
    let phases: Vec<&Value> = report["steps"].as_array().into_iter().flatten().map(|step| &step["phase"]).collect();
    assert_eq!(phases, ["decode", "prefill"]);
    for step in report["steps"].as_array().into_iter().flatten() {
        let operations = step["operations"].as_array().expect("a list");
        let sum = |field: &str| operations.iter().filter_map(|operation| operation[field].as_u64()).sum::<u64>();
        for field in ["count", "bytes", "macs"] {
            assert!(sum(field) > 0, "{step}");
            assert_eq!(Some(sum(field)), step["sum"][field].as_u64(), "{field}");
        }
        // Every matrix of the model is read in every step: about the size of the file.
        assert!(sum("bytes") > 5_000_000, "{step}");
        for name in ["attention", "delta rule", "norm"] {
            let has_name = |operation: &Value| operation["name"].as_str().is_some_and(|found| found.contains(name));
            assert!(operations.iter().any(has_name), "{name}");
        }
    }
    let table = output(&["bench", "--profile", "--decode", "2", "--prefill", "16", "--repeat", "1"]);
    assert!(table.contains("linear ffn_gate+ffn_up Q8_0"), "{table}");
}

#[test]
fn tuning_ends_with_flags_that_the_program_takes() {
    let tuned = output(&["bench", "--tune", "--decode", "2", "--repeat", "1", "--threads", "1"]);
    let flags = tuned.lines().find_map(|line| line.strip_prefix("best: ")).expect("a best");
    let flags: Vec<&str> = flags.split(' ').collect();
    assert_eq!((flags[0], flags[1], flags[2]), ("--threads", "1", "--prefill-chunk"));
    output(&[&["run", "--raw", "-p", "In", "-n", "2"], &flags[..]].concat());
}

#[test]
fn verifying_rows_is_compared_with_one_row() {
    let arguments = ["bench", "--verify", "--verify-rows", "1,8", "--decode", "4", "--repeat", "1", "--json"];
    let report: Value = serde_json::from_str(&output(&arguments)).expect("JSON");
    let rows: Vec<&Value> = report["verify"].as_array().into_iter().flatten().map(|one| &one["rows"]).collect();
    assert_eq!(rows, [1, 8]);
    assert!(report["verify"][1]["ratio"]["median"].as_f64().is_some_and(|ratio| ratio > 0.0), "{report}");
}

#[test]
fn perplexity_is_measured_as_by_others() {
    let arguments = ["eval", "perplexity", "--ctx", "1024", "--kv-type", "f32", "--json"];
    let report: Value = serde_json::from_str(&output(&arguments)).expect("JSON");
    assert_eq!((report["windows"].as_u64(), report["tokens"].as_u64()), (Some(20), Some(20 * 511)));
    // What another implementation measured of this very text and model.
    assert!(report["perplexity"].as_f64().is_some_and(|found| (found - 18.758).abs() < 0.01), "{report}");
    let with = |flags: &[&str]| {
        let arguments = [&["eval", "perplexity", "--ctx", "1024", "--windows", "2"], flags].concat();
        let text = output(&arguments);
        let number = text.split("perplexity ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a figure");
        number.parse::<f64>().expect("a number")
    };
    // So small a model hardly feels how keys and values are rounded, but it feels it.
    let (plain, rounded) = (with(&["--kv-type", "f32"]), with(&["--kv-type", "q4_0"]));
    assert!((rounded / plain - 1.0).abs() < 0.03 && rounded.to_bits() != plain.to_bits(), "{rounded}, {plain}");
    assert!((with(&["--kv-type", "q4_0", "--no-rotation"]) - rounded).abs() > 1e-4, "rotation is switched off");
}

#[test]
fn a_table_compares_the_types_of_keys_and_values() {
    let arguments =
        ["eval", "kv", "--ctx", "128", "--windows", "2", "--recall", "128", "--types", "f16,q8_0,q4_1", "--json"];
    let report: Value = serde_json::from_str(&output(&arguments)).expect("JSON");
    let rows = report["rows"].as_array().expect("a list");
    let names: Vec<_> = rows.iter().map(|row| (row["type"].as_str(), row["rotated"].as_bool())).collect();
    let (q8, q4) = (Some("q8_0"), Some("q4_1"));
    let both = [(q8, Some(true)), (q8, Some(false)), (q4, Some(true)), (q4, Some(false))];
    assert_eq!(names, [&[(Some("f16"), None)], &both[..]].concat());
    assert_eq!((rows[0]["change"].as_f64(), rows[0]["same_best"].as_f64()), (Some(0.0), Some(1.0)));
    // The model was trained to find such facts again.
    for row in rows {
        let found = &row["recall"][0];
        assert_eq!(found["asked"], 8, "{found}");
        assert!(found["right"].as_u64().is_some_and(|right| right >= 6), "{row}");
    }
    let short = complaint(&["eval", "perplexity", "--ctx", "30000"]);
    assert!(short.contains("30000") && short.contains("--ctx"), "{short}");
}

#[test]
fn a_selfcheck_finds_no_difference_and_would_find_one() {
    let arguments = ["selfcheck", "--tokens", "24", "--threads", "2"];
    let table = output(&arguments);
    let tables: Vec<&str> = table.split("\n\n").collect();
    assert_eq!(tables.len(), 3, "{table}");
    for kind in ["f16", "f32", "q8_0", "q4_0", "q4_1", "iq4_nl"] {
        let line = tables[0].lines().find(|line| line.starts_with(kind)).expect("a line for every type");
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert!(fields[1].parse::<usize>().is_ok_and(|ways| ways > 3), "{line}");
        assert_eq!((fields[2], fields[3]), ("0", "0"), "{table}");
        // kind, N cached, M of T, differences: from the cache.
        let line = tables[1].lines().find(|line| line.starts_with(kind)).expect("a line for every type");
        let fields: Vec<&str> = line.split_whitespace().collect();
        let cached = [fields[1], fields[3]].map(|count| count.parse::<usize>().expect("a number"));
        assert!(cached.iter().all(|count| *count > 0) && fields.last() == Some(&"0"), "{table}");
    }
    // kind, source, shards, answers, N of M right, differences: with drafts.
    let drafted: Vec<Vec<&str>> = tables[2].lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let ways: Vec<[&str; 2]> = drafted.iter().map(|fields| [fields[1], fields[2]]).collect();
    assert_eq!(ways, [["lookup", "1"], ["lookup", "2"], ["mtp", "1"], ["mtp", "2"]], "{table}");
    for fields in drafted {
        assert_eq!((fields[3], fields.last()), ("16", Some(&"0")), "{table}");
        assert!(fields[6].parse::<usize>().is_ok_and(|drafts| drafts > 0), "no draft was run: {table}");
    }
    let spoilt = run(&[&arguments[..], &["--spoil", "--json"]].concat());
    assert!(!spoilt.status.success(), "a difference ends in failure");
    let report: Value = serde_json::from_slice(&spoilt.stdout).expect("JSON, also then");
    let found = &report["types"][0]["differences"][0];
    assert!(found["first"].as_str().is_some_and(|first| first.contains("after token 31")), "{found}");
}

#[test]
fn run_prints_an_answer_and_stops_where_told() {
    let prompt = "In the beginning";
    let whole = output(&["run", "--raw", "-p", prompt, "-n", "24"]);
    let again = output(&["run", "--raw", "-p", prompt, "-n", "24", "--shards", "2"]);
    assert_eq!(whole, again);
    let json = output(&["run", "--raw", "-p", prompt, "-n", "24", "--json", "--logprobs", "2"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["text"].as_str().map(|text| format!("{text}\n")), Some(whole));
    assert_eq!(json["tokens"].as_array().map(Vec::len), json["logprobs"].as_array().map(Vec::len));
}

#[test]
fn a_configuration_file_sets_flags_and_the_command_line_wins() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("paceline.toml");
    std::fs::write(&path, "alias = 'from-file'\nctx = 1024\nshards = 2\n").expect("writable");
    let path = path.to_str().expect("UTF-8");
    let models = |server: &Server| crate::http::get(server.address, "/v1/models").json()["data"][0]["id"].clone();
    assert_eq!(models(&Server::start(&["--config", path])), "from-file");
    assert_eq!(models(&Server::start(&["--config", path, "--alias", "from-line"])), "from-line");
}

#[test]
fn help_names_every_command() {
    let help = output(&["--help"]);
    for command in ["serve", "run", "plan", "bench"] {
        assert!(help.contains(command), "{help}");
        assert!(output(&[command, "--help"]).contains("--shards"), "{command}");
    }
    assert!(output(&["--version"]).starts_with("paceline "));
}
