//! Devices and links as people describe them.

use std::time::Duration;

use super::*;

fn group(text: &str) -> DeviceGroup {
    text.parse().unwrap()
}

fn refused<T: std::str::FromStr<Err = DescriptionError> + std::fmt::Debug>(text: &str) -> String {
    text.parse::<T>().unwrap_err().to_string()
}

#[test]
fn devices_are_understood() {
    let found = group("8x 24GiB 1008GB/s");
    assert_eq!((found.count, found.device.memory_bytes, found.device.name.as_str()), (8, 24 * GIB, "gpu"));
    // Three quarters of the bandwidth; 64 products per byte of it, and 40% of those.
    let speed = found.device.speed.unwrap();
    assert!((speed.read - 756e9).abs() < 1e3 && (speed.products - 25.8048e12).abs() < 1e6, "{speed:?}");
    assert_eq!(
        found.assumed.unwrap(),
        "75% of the described bandwidth and 40% of the products are reckoned with; none were described, \
         64.5 TMAC/s are assumed"
    );
    let found = group("2x 16GiB 900GB/s 112TOPS @hostb");
    assert_eq!((found.count, found.device.host.as_str()), (2, "hostb"));
    assert!((found.device.speed.unwrap().products - 0.4 * 56e12).abs() < 1e6);
    let found = group("cpu 64GiB 40GB/s 8threads");
    assert_eq!((found.count, found.device.name.as_str(), found.device.threads), (1, "cpu", 8));
    assert!((found.device.speed.unwrap().products - 0.4 * 16.0 * 40e9).abs() < 1e6);
    assert_eq!(group("24GB").device.speed, None);
    assert_eq!(group("24GB").assumed, None);
}

#[test]
fn words_may_be_written_in_many_ways() {
    let expected = group("8x 24GiB 1008GB/s 330TFLOPS");
    for text in [
        "8x24GiB 1008GB/s 165TMAC/s",
        "8 x 24 GiB 1008 GB/s 330 tops",
        "330TOPS 1.008TB/s 24gib gpu 8X",
        "  8x\t24GiB 1008000MB/s 165000GMAC/s ",
    ] {
        let found = group(text);
        assert_eq!((found.count, found.device.memory_bytes), (expected.count, expected.device.memory_bytes), "{text}");
        let [one, other] = [&found, &expected].map(|group| group.device.speed.unwrap());
        assert!(
            (one.read / other.read - 1.0).abs() < 1e-9 && (one.products / other.products - 1.0).abs() < 1e-9,
            "{text}"
        );
    }
    for (text, bytes) in [("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("2TB", 2_000_000_000_000), ("1MB", 1_000_000)] {
        assert_eq!(group(text).device.memory_bytes, bytes, "{text}");
    }
}

#[test]
fn bad_descriptions_say_which_word_and_what_is_understood() {
    for (text, start) in [
        (
            "8x 24GiB 1008GB/s fast",
            "\"fast\" in \"8x 24GiB 1008GB/s fast\": it is no number above 0 with a unit; a count such as 8x",
        ),
        ("24", "\"24\" in \"24\": it has no unit"),
        ("24GiB 24GiB", "\"24GiB\" in \"24GiB 24GiB\": there is one already"),
        ("24GiB 1GB/s 2GB/s", "\"2GB/s\" in \"24GiB 1GB/s 2GB/s\": there is one already"),
        ("cpu gpu 1GiB", "\"gpu\" in"),
        ("24GiB @", "\"@\" in \"24GiB @\": a host's name has letters"),
        ("24GiB @a\u{1b}[0m", "\"@a\\u{1b}[0m\" in"),
        ("0x 24GiB", "\"0x\" in \"0x 24GiB\": it is no number above 0 with a unit"),
        ("1.5x 24GiB", "\"1.5x\" in \"1.5x 24GiB\": there cannot be so many"),
        ("9999x 24GiB", "\"9999x\" in \"9999x 24GiB\": there cannot be so many"),
        ("99999999999999999999x24GiB", "\"99999999999999999999x\" in"),
        ("-24GiB", "\"-24GiB\" in \"-24GiB\": it is no number above 0 with a unit"),
        ("infGiB", "\"infGiB\" in"),
        ("1e3GiB", "\"1e3GiB\" in \"1e3GiB\": the unit is not known"),
        ("9999999999GiB", "\"9999999999GiB\" in \"9999999999GiB\": no device has so much memory"),
        ("0.0000001MiB", "\"0.0000001MiB\" in"),
        ("24GiB 70000threads", "\"70000threads\" in"),
        ("24GiB 1.2.3GB/s", "\"1.2.3GB/s\" in"),
        ("24GiB 10Gb", "\"10Gb\" in \"24GiB 10Gb\": there is one already"),
        ("24GiB 5lightyears", "\"5lightyears\" in \"24GiB 5lightyears\": the unit is not known"),
        ("", "\"\" has no memory; a count such as 8x"),
        ("gpu 1008GB/s", "\"gpu 1008GB/s\" has no memory"),
        ("24GiB 112TOPS", "\"24GiB 112TOPS\" has no bandwidth, which must be there with products"),
    ] {
        let message = refused::<DeviceGroup>(text);
        assert!(message.starts_with(start), "{message}");
        assert!(message.ends_with("a host such as @hostb are understood"), "{message}");
    }
}

#[test]
fn devices_of_one_name_are_numbered_on_each_host() {
    let groups = ["2x 1GiB", "cpu 1GiB", "1GiB", "2x 1GiB @b", "cpu 2GiB @b"].map(group);
    let names: Vec<String> =
        Cluster::described(&groups).devices.iter().map(|device| format!("{}@{}", device.name, device.host)).collect();
    assert_eq!(names, ["gpu0@", "gpu1@", "cpu@", "gpu2@", "gpu0@b", "gpu1@b", "cpu@b"]);
}

#[test]
fn links_are_understood() {
    let link = |text: &str| text.parse::<LinkSpeed>().unwrap();
    assert_eq!(link("10Gb/s 100us"), LinkSpeed { round_trip: Duration::from_micros(100), bytes_per_second: 1.25e9 });
    assert_eq!(link("0.3 ms 1.2 GB/s"), LinkSpeed { round_trip: Duration::from_micros(300), bytes_per_second: 1.2e9 });
    assert_eq!(link("100Mbit/s").round_trip, LinkSpeed::BETWEEN_HOSTS.round_trip);
    for (text, start) in [
        ("", "\"\" has no rate and no round trip; a rate such as"),
        ("10", "\"10\" in \"10\": it has no unit"),
        ("10gb/s", "\"10gb/s\" in \"10gb/s\": the unit is not known"),
        ("10Gb/s 1Gb/s", "\"1Gb/s\" in \"10Gb/s 1Gb/s\": there is one already"),
        ("99999s", "\"99999s\" in \"99999s\": no link takes so long"),
        ("0Gb/s", "\"0Gb/s\" in"),
    ] {
        let message = refused::<LinkSpeed>(text);
        assert!(message.starts_with(start), "{message}");
    }
}

#[test]
fn targets_are_understood() {
    let found: Targets = "first-token<800ms users=3, prompt=2000 decode>20 answer=250 depth=16000".parse().unwrap();
    assert_eq!(found.first_token, Some(Duration::from_millis(800)));
    assert_eq!((found.decode, found.users, found.prompt), (Some(20.0), Some(3), Some(2000)));
    assert_eq!((found.answer, found.depth), (Some(250), Some(16_000)));
    assert_eq!("".parse::<Targets>().unwrap(), Targets::default());
    for (text, problem) in [
        ("fast", "it has none of <, > and ="),
        ("first-token>2s", "there is no such target"),
        ("speed>2", "there is no such target"),
        ("users=0", "\"0\" is no whole number above 0"),
        ("users=-1", "\"-1\" is no whole number above 0"),
        ("users=1 users=2", "it is there twice"),
        ("decode>nan", "\"nan\" is no number above 0"),
        ("first-token<2", "\"2\" is no time such as 800ms or 2s"),
        ("first-token<99999999s", "\"99999999s\" is no time such as 800ms or 2s"),
    ] {
        let message = text.parse::<Targets>().unwrap_err().to_string();
        assert!(message.contains(&format!(" is no target: {problem}; first-token<800ms")), "{message}");
    }
}

proptest! {
    #[test]
    fn no_text_is_too_strange(text in "[ 0-9.xGgiBbTMs/@a-zµ<>=-]{0,40}", other in any::<String>()) {
        for text in [text, other] {
            let _ = (text.parse::<DeviceGroup>(), text.parse::<LinkSpeed>(), text.parse::<Targets>());
        }
    }
}
