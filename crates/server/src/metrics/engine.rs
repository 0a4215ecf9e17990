//! Series of the engine: queues, tokens, tiers, links and lanes.

use engine::{Counts, Engine, Hold, Moved, OpSort, PREEMPTIONS, STEP_TOKENS};
use spec::{BLOCK_TOKENS, Lane, Tier};

use super::text::Page;
use crate::served::Served;
use crate::tiers::tiers;

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

pub(super) fn series(page: &mut Page, served: &Served) {
    let (counts, hold) = (served.engine.counts(), served.engine.hold());
    queues(page, &counts, hold);
    tokens(page, &counts);
    prefixes(page, &counts, hold.host_kv_blocks + hold.prefix_blocks.disk);
    kept(page, &counts, hold);
    preemptions(page, &counts);
    steps(page, &counts);
    memory(page, &counts, hold);
    links(page, &counts, &served.engine);
}

/// What autoscalers look at is there before the model is.
pub(super) fn nothing_yet(page: &mut Page) {
    load(page, (0, 0), 0.0);
}

/// Sequences that run and wait, and the share of KV in use.
fn load(page: &mut Page, (running, waiting): (u64, u64), usage: f64) {
    let help = "Sequences that hold KV and take part in steps, on whichever tier it lives.";
    page.both(("requests_running", "num_requests_running"), GAUGE, help, running);
    let help = "Sequences that wait: new, preempted or moved to the host.";
    page.both(("requests_waiting", "num_requests_waiting"), GAUGE, help, waiting);
    page.both(("kv_usage_ratio", "kv_cache_usage_perc"), GAUGE, "Share of KV blocks in use, 0 to 1.", usage);
}

fn queues(page: &mut Page, counts: &Counts, hold: &Hold) {
    let usage = counts.kv_blocks_used as f64 / hold.kv_blocks.max(1) as f64;
    load(page, (counts.running, counts.waiting), usage);
    // Whatever waits here waits for blocks or a place in a step; nothing is put off for another reason.
    let name = "vllm:num_requests_waiting_by_reason";
    page.family(name, GAUGE, "Sequences that wait, by what for.");
    page.sample(name, ",reason=\"capacity\"", counts.waiting);
    page.sample(name, ",reason=\"deferred\"", 0);
}

fn tokens(page: &mut Page, counts: &Counts) {
    let help = "Prompt tokens of the sequences that began.";
    page.both(("prompt_tokens_total", "prompt_tokens_total"), COUNTER, help, counts.prompt_tokens);
    let help = "Tokens generated.";
    page.both(("generation_tokens_total", "generation_tokens_total"), COUNTER, help, counts.generated_tokens);
    let help = "Sequences that ended because their logits were no numbers.";
    page.both(("corrupted_requests_total", "corrupted_requests_total"), COUNTER, help, counts.corrupted);
}

/// Beginnings that were in memory. vLLM's prefix cache is the device's; what other tiers keep is external to it.
/// `below`: blocks that other tiers have for it.
fn prefixes(page: &mut Page, counts: &Counts, below: usize) {
    let all = counts.cached_tokens;
    let drive = counts.drive_cached_tokens.min(all);
    let host = counts.host_cached_tokens.min(all - drive);
    let (device, external) = (all - host - drive, host + drive);
    let help = "Prompt tokens looked up in the prefix cache.";
    page.both(("prefix_queries_total", "prefix_cache_queries_total"), COUNTER, help, counts.looked_up_tokens);
    let help = "Prompt tokens found in the prefix cache, on any tier.";
    page.one("ballast_prefix_hits_total", COUNTER, help, all);
    page.one("vllm:prompt_tokens_cached_total", COUNTER, help, all);
    let help = "Prompt tokens found in the device's prefix cache.";
    page.one("vllm:prefix_cache_hits_total", COUNTER, help, device);
    let help = "Prompt tokens looked up on host and drive, as the device did not have them.";
    let asked = if below == 0 { 0 } else { counts.looked_up_tokens.saturating_sub(device) };
    page.one("vllm:external_prefix_cache_queries_total", COUNTER, help, asked);
    let help = "Those of them that host or drive had.";
    page.one("vllm:external_prefix_cache_hits_total", COUNTER, help, external);
    let name = "vllm:prompt_tokens_by_source_total";
    page.family(name, COUNTER, "Prompt tokens by where their KV came from.");
    page.sample(name, ",source=\"local_compute\"", counts.prompt_tokens.saturating_sub(all));
    page.sample(name, ",source=\"local_cache_hit\"", device);
    page.sample(name, ",source=\"external_kv_transfer\"", external);
    let name = "vllm:prompt_tokens_cached_by_source_total";
    page.family(name, COUNTER, "Prompt tokens found in memory, by tier.");
    page.sample(name, ",source=\"device\"", device);
    page.sample(name, ",source=\"host\"", host);
    page.sample(name, ",source=\"disk\"", drive);
}

/// What each tier keeps of beginnings.
fn kept(page: &mut Page, counts: &Counts, hold: &Hold) {
    let block_bytes = hold.kv_bytes / hold.kv_blocks.max(1) as u64;
    let name = "ballast_prefix_cache_bytes";
    page.family(name, GAUGE, "KV that a tier keeps for prompts that begin alike, that in use included.");
    for (tier, at) in [("device", Tier::Device), ("host", Tier::Host), ("disk", Tier::Disk)] {
        page.sample(name, &format!(",tier=\"{tier}\""), counts.prefix_blocks[at] * block_bytes);
    }
    let help = "KV blocks of beginnings that could not be read from the drive or written to it.";
    page.one("ballast_prefix_cache_lost_blocks_total", COUNTER, help, counts.prefix_blocks_lost);
    let help = "KV blocks of beginnings that gave way before host or drive had a copy: they came faster than copies are made.";
    page.one("ballast_prefix_cache_unsaved_blocks_total", COUNTER, help, counts.prefix_blocks_unsaved);
    let help = "KV blocks that the drive had of a prompt, and that were computed, as that takes less than reading them.";
    page.one("ballast_prefix_cache_computed_blocks_total", COUNTER, help, counts.prefix_blocks_computed);
}

/// Present where weights did not fit and the planner decided.
fn planner(page: &mut Page, counts: &Counts) {
    if counts.foreseen_took_ns == 0 {
        return;
    }
    let [said, took] = [counts.foreseen_ns, counts.foreseen_took_ns].map(|ns| ns as f64 / 1e9);
    let help = "Time that the planner's costs say the steps done should have taken.";
    page.one("ballast_planner_predicted_seconds_total", COUNTER, help, said);
    let help = "Time that these steps took, from the end of the one before.";
    page.one("ballast_planner_measured_seconds_total", COUNTER, help, took);
    let help = "Predicted over measured, less one.";
    page.one("ballast_planner_error_ratio", GAUGE, help, said / took - 1.0);
    let name = "ballast_planner_correction_factor";
    let help = "How many times as long as the tables say ops of a sort take, as runs have found.";
    page.family(name, GAUGE, help);
    for sort in OpSort::ALL {
        let factor = counts.correction_millionths[sort as usize] as f64 / 1e6;
        page.sample(name, &format!(",ops=\"{}\"", sort.name()), factor);
    }
}

fn preemptions(page: &mut Page, counts: &Counts) {
    let recomputed = |tier: Tier| counts.recomputed[tier];
    let all = counts.swapped + Tier::ALL.into_iter().map(recomputed).sum::<u64>();
    page.one("vllm:num_preemptions_total", COUNTER, "Sequences that gave up their KV on the device.", all);
    let name = "ballast_preemptions_total";
    page.family(name, COUNTER, "The same, by the tier that had no room and by what becomes of the KV.");
    page.sample(name, ",cause=\"device_full\",kv=\"swapped\"", counts.swapped);
    for (cause, tier) in [("device_full", Tier::Device), ("host_full", Tier::Host), ("disk_full", Tier::Disk)]
    {
        page.sample(name, &format!(",cause=\"{cause}\",kv=\"recomputed\""), recomputed(tier));
    }
    let help = "How often each sequence that ended was preempted.";
    for name in ["ballast_request_num_preemptions", "vllm:request_num_preemptions"] {
        let sequences = (&PREEMPTIONS[..], &counts.preemptions[..]);
        buckets(page, name, help, sequences, counts.preemptions_of_ended);
    }
}

/// A histogram that the engine counts: so many up to each bound, and more.
fn buckets(page: &mut Page, name: &str, help: &str, (bounds, counts): (&[u32], &[u64]), sum: u64) {
    page.family(name, "histogram", help);
    let mut below = 0;
    let bounds = bounds.iter().map(u32::to_string).chain(["+Inf".to_string()]);
    for (bound, count) in bounds.zip(counts) {
        below += count;
        page.sample(&format!("{name}_bucket"), &format!(",le=\"{bound}\""), below);
    }
    page.sample(&format!("{name}_sum"), "", sum);
    page.sample(&format!("{name}_count"), "", below);
}

fn steps(page: &mut Page, counts: &Counts) {
    page.one("ballast_steps_total", COUNTER, "Steps done.", counts.steps);
    page.one("ballast_computed_tokens_total", COUNTER, "Positions computed.", counts.computed_tokens);
    for name in ["ballast_step_tokens", "vllm:iteration_tokens_total"] {
        let steps = (&STEP_TOKENS[..], &counts.step_tokens[..]);
        buckets(page, name, "Tokens computed in a step.", steps, counts.computed_tokens);
    }
    planner(page, counts);
    let busy = counts.busy_ns as f64 / 1e9;
    page.one("ballast_busy_seconds_total", COUNTER, "Time that steps took on the lanes.", busy);
    let host = counts.host_attention_ns as f64 / 1e9;
    page.one("ballast_host_attention_seconds_total", COUNTER, "Time of attention on the host.", host);
    let hidden = counts.hidden_attention_ns as f64 / 1e9;
    let help = "The part of it in which the device worked too.";
    page.one("ballast_host_attention_hidden_seconds_total", COUNTER, help, hidden);
    let name = "ballast_lane_busy_seconds_total";
    page.family(name, COUNTER, "Time that each lane spent on its nodes.");
    for lane in Lane::ALL {
        let seconds = counts.lane_busy_ns[lane.index()] as f64 / 1e9;
        page.sample(name, &format!(",lane=\"{}\"", lane_name(lane)), seconds);
    }
}

/// As the page and metrics call it.
pub(crate) fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Device => "device",
        Lane::Host => "host",
        Lane::Up => "up",
        Lane::Down => "down",
        Lane::DiskRead => "disk_read",
        Lane::DiskWrite => "disk_write",
        Lane::PeerIn => "peer_in",
        Lane::PeerOut => "peer_out",
    }
}

fn memory(page: &mut Page, counts: &Counts, hold: &Hold) {
    let tiers = tiers(hold, counts);
    page.family(
        "ballast_tier_capacity_bytes",
        GAUGE,
        "What each tier may hold; of the drive, what its files have room for.",
    );
    for tier in &tiers {
        page.sample("ballast_tier_capacity_bytes", &format!(",tier=\"{}\"", tier.name), tier.capacity_bytes);
    }
    for (name, help) in [
        ("ballast_tier_reserved_bytes", "What is set apart on each tier, by what for."),
        ("ballast_tier_used_bytes", "What holds something on each tier, by what."),
    ] {
        page.family(name, GAUGE, help);
        for (tier, part) in tiers.iter().flat_map(|tier| tier.parts.iter().map(move |part| (tier, part))) {
            let bytes = if name.ends_with("used_bytes") { part.used_bytes } else { part.reserved_bytes };
            page.sample(name, &format!(",tier=\"{}\",part=\"{}\"", tier.name, part.name), bytes);
        }
    }
    page.one("ballast_memory_limit_bytes", GAUGE, "What the process may take.", hold.limit_bytes);
    let more = format!(
        ",block_size=\"{}\",num_gpu_blocks=\"{}\"",
        BLOCK_TOKENS.0,
        hold.device_kv_tokens() / BLOCK_TOKENS.0 as usize
    );
    page.family("vllm:cache_config_info", GAUGE, "The KV pool.");
    page.sample("vllm:cache_config_info", &more, 1);
}

fn links(page: &mut Page, counts: &Counts, engine: &Engine) {
    let (up, read) = (engine.copied(), engine.streamed());
    let name = "ballast_moved_bytes_total";
    page.family(name, COUNTER, "Bytes moved between tiers, by link and what they are.");
    page.sample(name, ",link=\"up\",what=\"weights\"", up.bytes);
    page.sample(name, ",link=\"disk_read\",what=\"weights\"", read.bytes);
    for link in [Lane::Up, Lane::Down, Lane::DiskRead, Lane::DiskWrite] {
        for what in Moved::ALL {
            let kind = if what == Moved::Kv { "kv" } else { "activations" };
            let bytes = counts.moved_bytes[link.index()][what as usize];
            page.sample(name, &format!(",link=\"{}\",what=\"{kind}\"", lane_name(link)), bytes);
        }
    }
    let name = "ballast_kv_left_bytes_total";
    page.family(
        name,
        COUNTER,
        "Bytes of values that sparse attention did not choose, and that were left, by link.",
    );
    for link in [Lane::Up, Lane::DiskRead] {
        page.sample(name, &format!(",link=\"{}\"", lane_name(link)), counts.left_bytes[link.index()]);
    }
    let name = "ballast_moving_seconds_total";
    page.family(name, COUNTER, "Time in which weights were being moved, by link.");
    for (link, busy_ns) in [("up", up.busy_ns), ("disk_read", read.busy_ns)] {
        page.sample(name, &format!(",link=\"{link}\""), busy_ns as f64 / 1e9);
    }
    page.one("ballast_moved_blocks_total", COUNTER, "KV blocks moved between tiers.", counts.moved_blocks);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(counts: &Counts) -> String {
        let mut page = Page { text: String::new(), labels: "x=\"y\"".into() };
        planner(&mut page, counts);
        page.text
    }

    #[test]
    fn beginnings_are_counted_by_the_tier_that_had_them() {
        let mut page = Page { text: String::new(), labels: "x=\"y\"".into() };
        let counts = Counts {
            prompt_tokens: 100,
            looked_up_tokens: 90,
            cached_tokens: 64,
            host_cached_tokens: 16,
            drive_cached_tokens: 16,
            ..Counts::default()
        };
        prefixes(&mut page, &counts, 4);
        for line in [
            "ballast_prefix_hits_total{x=\"y\"} 64",
            "vllm:prefix_cache_hits_total{x=\"y\"} 32",
            "vllm:external_prefix_cache_queries_total{x=\"y\"} 58",
            "vllm:external_prefix_cache_hits_total{x=\"y\"} 32",
            "vllm:prompt_tokens_by_source_total{x=\"y\",source=\"local_compute\"} 36",
            "vllm:prompt_tokens_by_source_total{x=\"y\",source=\"external_kv_transfer\"} 32",
            "vllm:prompt_tokens_cached_by_source_total{x=\"y\",source=\"device\"} 32",
            "vllm:prompt_tokens_cached_by_source_total{x=\"y\",source=\"host\"} 16",
            "vllm:prompt_tokens_cached_by_source_total{x=\"y\",source=\"disk\"} 16",
        ] {
            assert!(page.text.lines().any(|told| told == line), "{line}: {}", page.text);
        }
    }

    #[test]
    fn the_planners_error_is_there_where_something_was_foreseen() {
        assert_eq!(text(&Counts::default()), "");
        let counts = Counts {
            foreseen_ns: 3_000_000_000,
            foreseen_took_ns: 4_000_000_000,
            correction_millionths: [1_250_000; OpSort::COUNT],
            ..Counts::default()
        };
        let told = text(&counts);
        for line in [
            "ballast_planner_predicted_seconds_total{x=\"y\"} 3",
            "ballast_planner_measured_seconds_total{x=\"y\"} 4",
            "ballast_planner_error_ratio{x=\"y\"} -0.25",
            "ballast_planner_correction_factor{x=\"y\",ops=\"reads\"} 1.25",
        ] {
            assert!(told.lines().any(|told| told == line), "{line}: {told}");
        }
    }
}
