//! The page for browsers: its files, and what is said with them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use paceline_api::ApiConfig;

use crate::client::{Client, Response};
use crate::harness::{Service, patient};

/// Asks as a browser does, with further headers.
async fn browse(service: &Service, method: &str, path: &str, headers: &str) -> Response {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: text/html,*/*;q=0.8\r\n{headers}\r\n");
    let mut client = Client::send(service.address, request.as_bytes()).await;
    if method == "HEAD" {
        let head = patient(client.head()).await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        return Response { status, head, body: String::new() };
    }
    patient(client.response()).await
}

/// The files that a text names as `page/NAME` or `./NAME`.
fn named(text: &str) -> Vec<String> {
    let quoted = text.split('"').filter_map(|part| part.strip_prefix("page/").or_else(|| part.strip_prefix("./")));
    quoted.map(|name| format!("/page/{name}")).collect()
}

/// The page, and every file that it names or that one of them names, by their paths.
async fn files(service: &Service) -> BTreeMap<String, Response> {
    let mut files = BTreeMap::new();
    let mut wanted = vec!["/".to_owned()];
    while let Some(path) = wanted.pop() {
        let Entry::Vacant(place) = files.entry(path) else { continue };
        let file = browse(service, "GET", place.key(), "").await;
        assert_eq!(file.status, 200, "{}", place.key());
        wanted.extend(named(&file.body));
        place.insert(file);
    }
    assert!(files.len() > 10, "only {:?}", files.keys());
    files
}

#[tokio::test]
async fn browsers_get_a_page_of_files_and_nothing_of_it_may_come_from_elsewhere() {
    let service = Service::start(ApiConfig::default());
    for (path, file) in files(&service).await {
        let expected = match path.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(file.header("content-type"), Some(expected), "{path}");
        let policy = file.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'self';") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert!(file.body.lines().count() < 500, "{path} is too long for one story");
        // The name of the language of drawings is an address that nobody goes to.
        for line in file.body.replace("http://www.w3.org/2000/svg", "").lines() {
            let far = ["https://", "http://", "url(", "@import", "src=\"//"].iter().any(|begin| line.contains(begin));
            assert!(!far, "{path}: {line}");
            assert!(!["innerHTML", "outerHTML", "insertAdjacentHTML"].iter().any(|way| line.contains(way)), "{line}");
        }
    }
    assert_eq!(browse(&service, "GET", "/", "").await.header("vary"), Some("accept"));
    assert_eq!(browse(&service, "GET", "/page/none.js", "").await.status, 404);
}

#[tokio::test]
async fn files_are_sent_once_and_their_heads_alone_on_request() {
    let service = Service::start(ApiConfig::default());
    for path in ["/", "/page/main.js"] {
        let whole = browse(&service, "GET", path, "").await;
        assert_eq!(whole.header("cache-control"), Some("no-cache"));
        let tag = whole.header("etag").unwrap();
        let again = browse(&service, "GET", path, &format!("If-None-Match: \"other\", {tag}\r\n")).await;
        assert_eq!((again.status, again.body.as_str(), again.header("etag")), (304, "", Some(tag)), "{path}");
        let newer = browse(&service, "GET", path, "If-None-Match: \"other\"\r\n").await;
        assert_eq!((newer.status, newer.body), (200, whole.body.clone()), "{path}");
        let head = browse(&service, "HEAD", path, "").await;
        assert_eq!((head.status, head.header("etag")), (200, Some(tag)), "{path}");
        assert_eq!(head.header("content-length"), Some(whole.body.len().to_string().as_str()), "{path}");
        let refused = service.exchange(path, "{}").await;
        assert_eq!((refused.status, refused.header("allow")), (405, Some("GET, HEAD")), "{path}");
    }
}

/// The page asks its own server with `Origin`, also where other origins are let in.
#[tokio::test]
async fn other_origins_do_not_keep_the_page_from_its_own() {
    let config = ApiConfig { cors_origins: vec!["https://elsewhere.example".to_owned()], ..ApiConfig::default() };
    let service = Service::start(config);
    let own = format!("Origin: http://{}\r\n", service.address);
    let response = browse(&service, "GET", "/v1/models", &own).await;
    assert_eq!((response.status, response.header("access-control-allow-origin")), (200, None));
}
