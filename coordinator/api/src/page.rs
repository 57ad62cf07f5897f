//! `GET /`: a chat and a view of the live row for browsers, and the list of pages for everybody else.
//!
//! The page is made of a few files that are part of the program. They are the same for everybody and say nothing of the
//! model, so they need no key; what they ask the API for does.

use std::sync::LazyLock;

use actix_web::http::header::{self, EntityTag, Header, IfNoneMatch};
use actix_web::{HttpRequest, HttpResponse, web};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Where the files of the page are.
pub(crate) const FOLDER: &str = "/page/";

/// Everything comes from this server, and only as files: a text that a model wrote can neither bring a script nor load
/// anything, whatever becomes of it in the page.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

/// A file of the page.
struct File {
    name: &'static str,
    content_type: &'static str,
    body: &'static str,
    /// Changes with its bytes.
    tag: EntityTag,
}

impl File {
    fn new(name: &'static str, content_type: &'static str, body: &'static str) -> Self {
        let hash = Sha256::digest(body);
        let tag = hash[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name, content_type, body, tag: EntityTag::new_strong(tag) }
    }

    /// The file, or that the browser has it already. It asks each time: a newer program brings newer files.
    fn answer(&self, request: &HttpRequest) -> HttpResponse {
        let known = self.is_known(request);
        let mut response = if known { HttpResponse::NotModified() } else { HttpResponse::Ok() };
        response
            .insert_header(header::ETag(self.tag.clone()))
            .insert_header((header::CACHE_CONTROL, "no-cache"))
            .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
            .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
            .insert_header((header::REFERRER_POLICY, "no-referrer"));
        if known { response.finish() } else { response.content_type(self.content_type).body(self.body) }
    }

    fn is_known(&self, request: &HttpRequest) -> bool {
        match IfNoneMatch::parse(request) {
            Ok(IfNoneMatch::Any) => true,
            Ok(IfNoneMatch::Items(tags)) => tags.iter().any(|tag| tag.weak_eq(&self.tag)),
            Err(_) => false,
        }
    }
}

static PAGE: LazyLock<File> = LazyLock::new(|| File::new("", HTML, include_str!("../page/index.html")));

static LIST: LazyLock<File> = LazyLock::new(|| File::new("", TEXT, include_str!("../page/pages.txt")));

/// The files below [`FOLDER`].
static FILES: LazyLock<[File; 17]> = LazyLock::new(|| {
    [
        File::new("icon.svg", "image/svg+xml", include_str!("../page/icon.svg")),
        File::new("style.css", STYLE, include_str!("../page/style.css")),
        File::new("chat.css", STYLE, include_str!("../page/chat.css")),
        File::new("row.css", STYLE, include_str!("../page/row.css")),
        File::new("theme.js", SCRIPT, include_str!("../page/theme.js")),
        File::new("main.js", SCRIPT, include_str!("../page/main.js")),
        File::new("service.js", SCRIPT, include_str!("../page/service.js")),
        File::new("storage.js", SCRIPT, include_str!("../page/storage.js")),
        File::new("element.js", SCRIPT, include_str!("../page/element.js")),
        File::new("markdown.js", SCRIPT, include_str!("../page/markdown.js")),
        File::new("chats.js", SCRIPT, include_str!("../page/chats.js")),
        File::new("conversation.js", SCRIPT, include_str!("../page/conversation.js")),
        File::new("message.js", SCRIPT, include_str!("../page/message.js")),
        File::new("settings.js", SCRIPT, include_str!("../page/settings.js")),
        File::new("rates.js", SCRIPT, include_str!("../page/rates.js")),
        File::new("stage.js", SCRIPT, include_str!("../page/stage.js")),
        File::new("row.js", SCRIPT, include_str!("../page/row.js")),
    ]
});

/// A chat and a view of the live row, for browsers; for everybody else, the list of pages.
#[utoipa::path(
    get,
    path = "/",
    responses(
        (status = 200, description = "The page", content((String = "text/html"), (String = "text/plain"))),
        (status = 304, description = "It is as it was"),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn show(request: HttpRequest) -> HttpResponse {
    let accepted = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let file = if accepted.is_some_and(|types| types.contains("text/html")) { &PAGE } else { &LIST };
    let mut response = file.answer(&request);
    response.headers_mut().insert(header::VARY, header::HeaderValue::from_static("accept"));
    response
}

/// A file of the page for browsers.
#[utoipa::path(
    get,
    path = "/page/{name}",
    params(("name" = String, Path, description = "Its name")),
    responses(
        (
            status = 200,
            description = "The file",
            content((String = "text/css"), (String = "text/javascript"), (String = "image/svg+xml")),
        ),
        (status = 304, description = "It is as it was"),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn file(request: HttpRequest, name: web::Path<String>) -> Result<HttpResponse> {
    let file = FILES.iter().find(|file| file.name == *name);
    file.map(|file| file.answer(&request))
        .ok_or_else(|| Error::UnknownRoute { method: request.method().clone(), path: request.path().to_owned() })
}
