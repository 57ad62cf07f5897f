//! The server: pages, limits, and its end.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use actix_cors::Cors;
use actix_web::dev::Server;
use actix_web::middleware::{Condition, from_fn};
use actix_web::{App, HttpRequest, HttpServer, Resource, Route, web};
use paceline_coordinator::Engine;
use rustls::ServerConfig;
use tokio::time::interval;

use crate::config::ApiConfig;
use crate::error::{Error, Result};
use crate::responses::{self, Kept};
use crate::{access, cache, chat, completions, messages, models, observe, openapi, page, scale, status, tokenize};

/// How often samples of histograms are put in their buckets when nobody reads the metrics: until then each sample
/// takes memory of its own.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// How long browsers may remember that a page may use the API.
const CORS_SECONDS: usize = 3600;

/// How long a connection that the server closes may take to notice.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Threads of each worker for work that takes time: templates, tokens.
const BACKGROUND_THREADS: usize = 4;

/// What every page works with.
pub(crate) struct Api {
    pub(crate) engine: Engine,
    pub(crate) config: ApiConfig,
    /// Responses that others can go on from.
    pub(crate) kept: Kept,
}

impl Api {
    /// Refuses a model that is not here. No name, or an empty one, means the one that is.
    pub(crate) fn check_model(&self, wanted: Option<&str>) -> Result<()> {
        let model = self.engine.model();
        let wanted = wanted.unwrap_or_default();
        if wanted.is_empty() || wanted == model.id || model.aliases.iter().any(|alias| alias == wanted) {
            return Ok(());
        }
        let names: Vec<&str> = std::iter::once(&model.id).chain(&model.aliases).map(String::as_str).collect();
        Err(Error::ModelNotFound { wanted: wanted.to_owned(), available: names.join(", ") })
    }

    /// Does work that takes time without holding up other connections.
    pub(crate) async fn in_background<T: Send + 'static>(
        api: &web::Data<Self>,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let api = web::Data::clone(api);
        let done = web::block(move || work(&api)).await;
        done.unwrap_or_else(|_| Err(Error::Internal("the work on the request was abandoned".to_owned())))
    }
}

/// Serves `engine` on `listener` until `shutdown` is ready; then accepts nothing more, lets answers go on for
/// [`ApiConfig::shutdown_timeout`], and disconnects who is left.
///
/// Works in any tokio runtime; connections are served on threads of their own.
///
/// # Errors
/// When the socket cannot be listened on.
pub async fn serve(
    engine: Engine,
    config: ApiConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let metrics = config.metrics.clone();
    let server = server(engine, config, listener, shutdown)?;
    let upkeep = async {
        let Some(metrics) = metrics else { return std::future::pending().await };
        let mut ticks = interval(METRICS_UPKEEP);
        loop {
            ticks.tick().await;
            metrics.run_upkeep();
        }
    };
    tokio::select! {
        ended = server => ended,
        () = upkeep => unreachable!("the upkeep of the metrics never ends"),
    }
}

fn server(
    engine: Engine,
    config: ApiConfig,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<Server> {
    let workers = config.workers.max(1);
    let (head_timeout, idle_timeout) = (config.head_timeout, config.idle_timeout);
    let (connections, shutdown_timeout) = (config.connections, config.shutdown_timeout);
    let (origins, tls) = (config.cors_origins.clone(), config.tls.clone());
    let kept = Kept::open(config.response_limits, config.response_shelf.clone())?;
    let api = web::Data::new(Api { engine, config, kept });
    let app = move || {
        App::new()
            .app_data(api.clone())
            .configure(pages)
            .default_service(web::to(unknown_route))
            .wrap(from_fn(access::authorize))
            .wrap(Condition::new(!origins.is_empty(), cors(&origins)))
            .wrap(from_fn(observe::observe))
    };
    let server = HttpServer::new(app)
        .workers(workers)
        .worker_max_blocking_threads(BACKGROUND_THREADS)
        .max_connections(connections.div_ceil(workers))
        .client_request_timeout(head_timeout)
        .client_disconnect_timeout(DISCONNECT_TIMEOUT)
        .keep_alive(idle_timeout)
        .shutdown_timeout(shutdown_timeout.as_secs())
        .shutdown_signal(shutdown)
        .tcp_nodelay(true)
        // The end of what a client sends is the end of the client: its request is dropped at once, even while
        // nothing is written. Without this a client that left is noticed only by the next event that it is sent.
        .h1_allow_half_closed(false);
    let server = match tls {
        None => server.listen(listener)?,
        Some(tls) => server.listen_rustls_0_23(listener, ServerConfig::clone(&tls))?,
    };
    Ok(server.run())
}

/// Lets web pages of these origins use the API. Keys travel in headers that pages set themselves, never in cookies.
fn cors(origins: &[String]) -> Cors {
    let cors = Cors::default().allow_any_method().allow_any_header().expose_any_header().max_age(CORS_SECONDS);
    if origins.iter().any(|origin| origin == "*") {
        return cors.allow_any_origin().send_wildcard();
    }
    origins.iter().fold(cors, |cors, origin| cors.allowed_origin(origin))
}

fn pages(config: &mut web::ServiceConfig) {
    config
        .service(resource("/", web::get().to(page::show), "GET, HEAD").route(web::head().to(page::show)))
        .service(resource("/page/{name}", web::get().to(page::file), "GET, HEAD").route(web::head().to(page::file)))
        .service(resource("/openapi.json", web::get().to(openapi::show), "GET"))
        .service(resource("/health", web::get().to(status::health), "GET"))
        .service(resource("/live", web::get().to(status::live), "GET"))
        .service(resource("/metrics", web::get().to(status::metrics), "GET"))
        .service(resource("/admin/v1/status", web::get().to(status::report), "GET"))
        .service(resource("/admin/v1/scale", web::post().to(scale::create), "POST"))
        .service(resource("/admin/v1/cache", web::get().to(cache::list), "GET"))
        .service(resource("/admin/v1/cache/pin", web::post().to(cache::pin), "POST"))
        .service(resource("/admin/v1/cache/unpin", web::post().to(cache::unpin), "POST"))
        .service(resource("/admin/v1/cache/drop", web::post().to(cache::forget), "POST"))
        .service(resource("/v1/models", web::get().to(models::list), "GET"))
        .service(resource("/v1/models/{id:.+}", web::get().to(models::show), "GET"))
        .service(resource("/v1/chat/completions", web::post().to(chat::create), "POST"))
        .service(resource("/v1/completions", web::post().to(completions::create), "POST"))
        .service(resource("/v1/messages", web::post().to(messages::create), "POST"))
        .service(resource("/v1/messages/count_tokens", web::post().to(messages::count), "POST"))
        .service(resource("/v1/responses", web::post().to(responses::create), "POST"))
        .service(
            resource("/v1/responses/{id}", web::get().to(responses::show), "GET, DELETE")
                .route(web::delete().to(responses::remove)),
        )
        .service(resource("/v1/responses/{id}/input_items", web::get().to(responses::input_items), "GET"))
        .service(resource("/tokenize", web::post().to(tokenize::tokenize), "POST"))
        .service(resource("/detokenize", web::post().to(tokenize::detokenize), "POST"));
}

/// A page that says which method it takes.
fn resource(path: &str, route: Route, allowed: &'static str) -> Resource {
    web::resource(path).route(route).default_service(web::to(move |request: HttpRequest| async move {
        let (method, path) = (request.method().clone(), request.path().to_owned());
        Err::<&str, _>(Error::MethodNotAllowed { method, path, allowed })
    }))
}

async fn unknown_route(request: HttpRequest) -> Result<&'static str> {
    Err(Error::UnknownRoute { method: request.method().clone(), path: request.path().to_owned() })
}
