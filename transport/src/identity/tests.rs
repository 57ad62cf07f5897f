//! Tokens, fingerprints and certificates as text and bytes. Handshakes are tested in `tests/handshakes`.

use paceline_proto::NodeId;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::Error;

fn token() -> JoinToken {
    let authority = Authority::create().expect("an authority");
    JoinToken::create("host.example:7070", authority.fingerprint()).expect("a token")
}

fn node() -> NodeId {
    NodeId(Uuid::new_v4())
}

#[test]
fn a_token_is_one_word_that_reads_back() {
    let token = token();
    let word = token.to_string();
    assert!(word.starts_with("paceline1.") && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)));
    assert_eq!(word.parse(), Ok(token.clone()));
    assert_eq!(format!("  {word}\n").parse(), Ok(token));
}

#[test]
fn a_token_shows_its_secret_only_as_text() {
    let token = token();
    let (shown, word) = (format!("{token:?}"), token.to_string());
    assert!(shown.contains("host.example:7070") && !shown.contains(&word[20..40]));
}

#[test]
fn two_tokens_share_nothing_secret() {
    let authority = Authority::create().expect("an authority");
    let two = [(), ()].map(|()| JoinToken::create("h:1", authority.fingerprint()).expect("a token"));
    assert_ne!(two[0].id, two[1].id);
    assert_ne!(two[0].key(), two[1].key());
    assert_eq!(two[0].key(), two[0].clone().key());
}

#[test]
fn damaged_tokens_are_refused_with_a_reason() {
    let word = token().to_string();
    for cut in 0..word.len() {
        assert!(matches!(word[..cut].parse::<JoinToken>(), Err(Error::Token { .. })), "cut at {cut}");
    }
    let swap = |at: usize| {
        let other = if word.as_bytes()[at] == b'A' { "B" } else { "A" };
        format!("{}{other}{}", &word[..at], &word[at + 1..])
    };
    for at in 10..word.len() {
        assert!(swap(at).parse::<JoinToken>().is_err(), "changed at {at}");
    }
    let long = format!("paceline1.{}", "A".repeat(100_000));
    for garbage in ["", "paceline1.", "paceline2.AAAA", "paceline1.ü", "paceline1.A=", &long, &word.to_uppercase()] {
        assert!(matches!(garbage.parse::<JoinToken>(), Err(Error::Token { .. })), "{garbage:.40}");
    }
}

#[test]
fn addresses_are_host_and_port() {
    let fingerprint = Authority::create().expect("an authority").fingerprint();
    for address in ["localhost:1", "10.0.0.1:65535", "[::1]:7070", "a-b.example:7070"] {
        assert!(JoinToken::create(address, fingerprint).is_ok(), "{address}");
    }
    let long = format!("{}:1", "h".repeat(300));
    for address in ["", "host", ":7070", "host:", "host:0", "host:65536", "ho st:1", "host:x", "hößt:1", &long] {
        assert!(matches!(JoinToken::create(address, fingerprint), Err(Error::Token { .. })), "{address}");
    }
}

proptest! {
    #[test]
    fn no_text_panics_a_reader(text in "\\PC*", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        use base64::Engine;
        let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&bytes);
        prop_assert!(text.parse::<JoinToken>().is_err());
        let word = format!("paceline1.{encoded}");
        prop_assert!(word.parse::<JoinToken>().is_err());
        let _ = (text.parse::<Fingerprint>(), text.parse::<TokenId>(), text.parse::<TokenKey>());
        prop_assert!(Authority::from_pem(&text).is_err());
    }

    #[test]
    fn no_bytes_panic_who_reads_certificates(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let authority = Authority::create().expect("an authority");
        prop_assert!(authority.issue(node(), None, Role::Shard, &bytes).is_err());
        prop_assert!(named_node(&bytes.into()).is_err());
    }
}

#[test]
fn digits_read_as_they_are_written() {
    let token = token();
    let (id, key) = (token.id.to_string(), token.key().expect("a key").to_string());
    assert_eq!((id.len(), key.len()), (16, 64));
    assert_eq!(id.parse(), Ok(token.id));
    assert_eq!(key.parse(), token.key());
    assert_eq!(token.fingerprint.to_string().parse(), Ok(token.fingerprint));
    assert!(id.to_uppercase() == id || id.to_uppercase().parse::<TokenId>().is_err());
    assert_eq!(id[1..].parse::<TokenId>(), Err(Error::Digits { what: "a token's id", digits: 16 }));
    let json = serde_json::to_string(&token.id).expect("serializable");
    assert_eq!(json, format!("\"{id}\""));
    assert_eq!(serde_json::from_str::<TokenId>(&json).ok(), Some(token.id));
    assert!(serde_json::from_str::<TokenKey>(&json).is_err());
}

#[test]
fn an_authority_survives_as_text() {
    let authority = Authority::create().expect("an authority");
    let again = Authority::from_pem(&authority.to_pem()).expect("the same authority");
    assert_eq!(again.fingerprint(), authority.fingerprint());
    let (node, key) = (node(), NodeKey::generate().expect("a key"));
    let certificate = again.issue(node, None, Role::Shard, &key.public_key_der()).expect("a certificate");
    let identity = Identity::new(node, key, certificate, authority.certificate().clone()).expect("an identity");
    assert_eq!((identity.node(), identity.fingerprint()), (node, authority.fingerprint()));
    assert!(!format!("{authority:?} {identity:?}").contains("PRIVATE"));
}

#[test]
fn half_an_authority_is_refused() {
    let [one, other] = [(), ()].map(|()| Authority::create().expect("an authority").to_pem());
    let middle = |pem: &str| pem.find("-----BEGIN CERTIFICATE").expect("a certificate");
    let (key, certificate) = (&one[..middle(&one)], &other[middle(&other)..]);
    for pem in ["", key, certificate, &format!("{key}{certificate}"), &one[..one.len() / 2]] {
        assert!(matches!(Authority::from_pem(pem), Err(Error::Certificate { .. })));
    }
}

#[test]
fn an_identity_is_checked() {
    let [ours, foreign] = [(), ()].map(|()| Authority::create().expect("an authority"));
    let make = |authority: &Authority, named: NodeId, own: bool, node: NodeId| {
        let (key, other) = (NodeKey::generate().expect("a key"), NodeKey::generate().expect("a key"));
        let public = if own { key.public_key_der() } else { other.public_key_der() };
        let certificate = authority.issue(named, None, Role::Shard, &public).expect("a certificate");
        Identity::new(node, key, certificate, ours.certificate().clone())
    };
    let (a, b) = (node(), node());
    assert!(make(&ours, a, true, a).is_ok());
    assert!(matches!(make(&foreign, a, true, a), Err(Error::Certificate { .. })), "a foreign authority");
    assert!(matches!(make(&ours, b, true, a), Err(Error::Certificate { .. })), "another node's certificate");
    assert!(matches!(make(&ours, a, false, a), Err(Error::Certificate { .. })), "another key's certificate");
}
