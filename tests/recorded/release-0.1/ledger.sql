BEGIN TRANSACTION;
CREATE TABLE activity_hours (
	environment VARCHAR(128) NOT NULL, 
	instance_id VARCHAR(128) NOT NULL, 
	hour BIGINT NOT NULL, 
	busy VARCHAR(90) NOT NULL, 
	idle VARCHAR(90) NOT NULL, 
	PRIMARY KEY (environment, instance_id, hour)
)
 WITHOUT ROWID

;
INSERT INTO "activity_hours" VALUES('aws/dev/us-east-1','i-idle',1795154400000000,'0','ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff');
INSERT INTO "activity_hours" VALUES('aws/dev/us-east-1','i-idle',1795158000000000,'0','ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff');
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0005');
CREATE TABLE brakes (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(128) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	scope VARCHAR(128) NOT NULL, 
	owner VARCHAR(128) NOT NULL, 
	reason TEXT NOT NULL, 
	since BIGINT NOT NULL, 
	until BIGINT, 
	released_at BIGINT, 
	released_by VARCHAR(128)
);
INSERT INTO "brakes" VALUES(1,'aws/dev/us-east-1','pause','','ann','load test',1795154400000000,1795183200000000,NULL,NULL);
INSERT INTO "brakes" VALUES(2,'aws/dev/us-east-1','keep','i-paid','bob','load test',1795154400000000,NULL,1795158000000000,'bob');
CREATE TABLE cost_sums (
	fleet VARCHAR(128) NOT NULL, 
	span VARCHAR(16) NOT NULL, 
	pool VARCHAR(64) NOT NULL, 
	since BIGINT NOT NULL, 
	known_until BIGINT NOT NULL, 
	usd VARCHAR(60) NOT NULL, 
	idle_usd VARCHAR(60) NOT NULL, 
	input_usd VARCHAR(60), 
	output_usd VARCHAR(60), 
	blended_usd VARCHAR(60), 
	unpriced INTEGER NOT NULL, 
	PRIMARY KEY (fleet, span, pool)
);
INSERT INTO "cost_sums" VALUES('aws/dev/us-east-1','today','',1795154400000000,1795176000000000,'8.640000000000000001','1.44',NULL,'0.5',NULL,1);
INSERT INTO "cost_sums" VALUES('aws/dev/us-east-1','today','chat',1795154400000000,1795176000000000,'8.640000000000000001','1.44',NULL,'0.5',NULL,1);
CREATE TABLE decision_heads (
	fleet VARCHAR(128) NOT NULL, 
	watchdog VARCHAR(16) NOT NULL, 
	resource VARCHAR(200) NOT NULL, 
	action VARCHAR(16) NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	sizes VARCHAR(32) NOT NULL, 
	PRIMARY KEY (fleet, watchdog, resource)
);
INSERT INTO "decision_heads" VALUES('aws/dev/us-east-1','idle','i-idle','end','still idle after its grace','');
INSERT INTO "decision_heads" VALUES('aws/dev/us-east-1','idle','i-fallback','keep','requests in flight','');
INSERT INTO "decision_heads" VALUES('aws/dev/us-east-1','spot','chat-spot-us-east-1a','resize','no spot to be had','2>1');
CREATE TABLE decisions (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(128) NOT NULL, 
	watchdog VARCHAR(16) NOT NULL, 
	resource VARCHAR(200) NOT NULL, 
	pool VARCHAR(64), 
	action VARCHAR(16) NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	detail TEXT NOT NULL, 
	evidence TEXT NOT NULL, 
	from_size INTEGER, 
	to_size INTEGER, 
	usd_per_hour VARCHAR(40), 
	at BIGINT NOT NULL
);
INSERT INTO "decisions" VALUES(1,'aws/dev/us-east-1','idle','i-idle','batch','end','still idle after its grace','25 min without a request','{"gpu": "0.01"}',NULL,NULL,'0.72',1795161600000000);
INSERT INTO "decisions" VALUES(2,'aws/dev/us-east-1','idle','i-fallback','chat','keep','requests in flight','it''s busy: 🦊','{}',NULL,NULL,NULL,1795161600000000);
INSERT INTO "decisions" VALUES(3,'aws/dev/us-east-1','spot','chat-spot-us-east-1a','chat','resize','no spot to be had','','{}',2,1,NULL,1795165200000000);
CREATE TABLE engine_processes (
	environment VARCHAR(128) NOT NULL, 
	instance_id VARCHAR(128) NOT NULL, 
	engine VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	created_at BIGINT NOT NULL, 
	first_at BIGINT NOT NULL, 
	PRIMARY KEY (environment, instance_id, engine, model, created_at)
)
 WITHOUT ROWID

;
INSERT INTO "engine_processes" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795156800000000,1795156800000000);
CREATE TABLE finals (
	fleet VARCHAR(128) NOT NULL, 
	since BIGINT NOT NULL, 
	until BIGINT NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	form VARCHAR(64) NOT NULL, 
	billed_usd VARCHAR(60) NOT NULL, 
	computed_usd VARCHAR(60) NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (fleet, since, until, digest)
);
INSERT INTO "finals" VALUES('aws/dev/us-east-1',1795068000000000,1795154400000000,'abababababababababababababababababababababababababababababababab','CUR 2.0','12.345678901234567890','12.34',1795172400000000);
CREATE TABLE intents (
	fleet VARCHAR(128) NOT NULL, 
	watchdog VARCHAR(16) NOT NULL, 
	resource VARCHAR(200) NOT NULL, 
	decision TEXT NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (fleet, watchdog, resource)
);
INSERT INTO "intents" VALUES('aws/dev/us-east-1','spot','chat-spot-us-east-1a','{"resource": "chat-spot-us-east-1a", "pool": "chat", "action": "resize", "reason": "no spot to be had", "detail": "", "evidence": "{}", "from_size": 2, "to_size": 1, "usd_per_hour": null}',1795165200000000);
CREATE TABLE leases (
	name VARCHAR(200) NOT NULL, 
	holder VARCHAR(200) NOT NULL, 
	until BIGINT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "leases" VALUES('idle/aws/dev/us-east-1','host/1',1795172700000000);
CREATE TABLE outbox (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	"key" VARCHAR(200) NOT NULL, 
	channel VARCHAR(128) NOT NULL, 
	text TEXT NOT NULL, 
	detail TEXT NOT NULL, 
	created_at BIGINT NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	attempts INTEGER NOT NULL, 
	not_before BIGINT NOT NULL, 
	token VARCHAR(64), 
	taken_at BIGINT, 
	sent_at BIGINT, 
	receipt VARCHAR(128), 
	error TEXT, 
	UNIQUE ("key")
);
INSERT INTO "outbox" VALUES(1,'digest/dev/2026-11-20','#gpu-cost','The day cost 8.64 USD','{"blocks": []}',1795172400000000,'waiting',0,1795172400000000,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "outbox" VALUES(2,'idle/i-idle','#gpu-cost','i-idle was ended: it''s 🦊','{}',1795172400000000,'waiting',0,1795172400000000,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE outcomes (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	fleet VARCHAR(128) NOT NULL, 
	watchdog VARCHAR(16) NOT NULL, 
	resource VARCHAR(200) NOT NULL, 
	pool VARCHAR(64), 
	action VARCHAR(16) NOT NULL, 
	reason VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	detail TEXT NOT NULL, 
	error TEXT, 
	usd_per_hour VARCHAR(40), 
	at BIGINT NOT NULL
);
INSERT INTO "outcomes" VALUES(1,'aws/dev/us-east-1','idle','i-idle','batch','end','idle','done','',NULL,NULL,1795161600000000);
INSERT INTO "outcomes" VALUES(2,'aws/dev/us-east-1','idle','i-idle','batch','end','still idle after its grace','failed','','RequestLimitExceeded','0.72',1795158000000000);
CREATE TABLE passes (
	environment VARCHAR(128) NOT NULL, 
	at BIGINT NOT NULL, 
	host VARCHAR(128) NOT NULL, 
	metrics_from BIGINT, 
	metrics_until BIGINT, 
	notes VARCHAR(2000) NOT NULL, 
	PRIMARY KEY (environment, at, host)
);
INSERT INTO "passes" VALUES('aws/dev/us-east-1',1795118400000000,'h',NULL,NULL,'');
INSERT INTO "passes" VALUES('aws/dev/us-east-1',1795176000000000,'h',NULL,NULL,'');
CREATE TABLE policies_seen (
	fleet VARCHAR(128) NOT NULL, 
	watchdog VARCHAR(16) NOT NULL, 
	pool VARCHAR(64) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	seen_by VARCHAR(128) NOT NULL, 
	at BIGINT NOT NULL, 
	PRIMARY KEY (fleet, watchdog, pool, digest)
);
INSERT INTO "policies_seen" VALUES('aws/dev/us-east-1','idle','batch','5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d5d','ann',1795154400000000);
CREATE TABLE price_observations (
	sku VARCHAR(128) NOT NULL, 
	region VARCHAR(64) NOT NULL, 
	zone VARCHAR(64) NOT NULL, 
	effective_at BIGINT NOT NULL, 
	source VARCHAR(64) NOT NULL, 
	usd_per_hour VARCHAR(40) NOT NULL, 
	observed_at BIGINT NOT NULL, 
	PRIMARY KEY (sku, region, zone, effective_at, source)
);
INSERT INTO "price_observations" VALUES('aws:ec2:g6.xlarge:spot','us-east-1','',1795154400000000,'test','0.36',1795176000000000);
INSERT INTO "price_observations" VALUES('aws:ec2:g6.xlarge:on-demand','us-east-1','',1795154400000000,'test','0.72',1795176000000000);
INSERT INTO "price_observations" VALUES('aws:ec2:g6.xlarge:on-demand','us-east-1','',1795165200999720,'test','0.9',1795176000000000);
CREATE TABLE reservations (
	cloud VARCHAR(8) NOT NULL, 
	reservation VARCHAR(128) NOT NULL, 
	started_at BIGINT NOT NULL, 
	instances INTEGER NOT NULL, 
	environment VARCHAR(128) NOT NULL, 
	region VARCHAR(64) NOT NULL, 
	zone VARCHAR(64) NOT NULL, 
	machine_type VARCHAR(64) NOT NULL, 
	pool VARCHAR(64), 
	model VARCHAR(256), 
	owner VARCHAR(128), 
	ends_at BIGINT, 
	last_seen_at BIGINT NOT NULL, 
	PRIMARY KEY (cloud, reservation, started_at, instances)
);
INSERT INTO "reservations" VALUES('aws','cr-1',1795154400000000,1,'aws/dev/us-east-1','us-east-1','us-east-1a','g6.xlarge','chat','models/<b>chat</b>-🦊/v1','search',NULL,1795176000000000);
CREATE TABLE run_ends (
	cloud VARCHAR(8) NOT NULL, 
	instance_id VARCHAR(128) NOT NULL, 
	started_at BIGINT NOT NULL, 
	cause VARCHAR(16) NOT NULL, 
	ended_at BIGINT NOT NULL, 
	exact INTEGER NOT NULL, 
	PRIMARY KEY (cloud, instance_id, started_at, cause)
);
INSERT INTO "run_ends" VALUES('aws','i-spot',1795154400000000,'preempted',1795156200000000,1);
INSERT INTO "run_ends" VALUES('aws','i-idle',1795154400000000,'ended',1795161600000000,1);
CREATE TABLE runs (
	cloud VARCHAR(8) NOT NULL, 
	instance_id VARCHAR(128) NOT NULL, 
	started_at BIGINT NOT NULL, 
	environment VARCHAR(128) NOT NULL, 
	region VARCHAR(64) NOT NULL, 
	zone VARCHAR(64) NOT NULL, 
	machine_type VARCHAR(64) NOT NULL, 
	capacity_type VARCHAR(16) NOT NULL, 
	pool VARCHAR(64), 
	model VARCHAR(256), 
	owner VARCHAR(128), 
	group_name VARCHAR(128), 
	reservation VARCHAR(128), 
	last_seen_at BIGINT NOT NULL, 
	PRIMARY KEY (cloud, instance_id, started_at)
);
INSERT INTO "runs" VALUES('aws','i-spot',1795154400000000,'aws/dev/us-east-1','us-east-1','us-east-1a','g6.xlarge','spot','chat','models/<b>chat</b>-🦊/v1','search',NULL,NULL,1795176000000000);
INSERT INTO "runs" VALUES('aws','i-fallback',1795156200000000,'aws/dev/us-east-1','us-east-1','us-east-1a','g6.xlarge','on-demand','chat','models/<b>chat</b>-🦊/v1','search',NULL,NULL,1795176000000000);
INSERT INTO "runs" VALUES('aws','i-idle',1795154400000000,'aws/dev/us-east-1','us-east-1','us-east-1a','g6.xlarge','on-demand','batch','models/batch','research',NULL,NULL,1795176000000000);
INSERT INTO "runs" VALUES('aws','i-paid',1795158000000000,'aws/dev/us-east-1','us-east-1','us-east-1a','g6.xlarge','reserved','chat','models/<b>chat</b>-🦊/v1','search',NULL,'cr-1',1795176000000000);
CREATE TABLE target_moves (
	fleet VARCHAR(128) NOT NULL, 
	pool VARCHAR(64) NOT NULL, 
	version INTEGER NOT NULL, 
	value INTEGER NOT NULL, 
	changed_by VARCHAR(128) NOT NULL, 
	reason TEXT NOT NULL, 
	because VARCHAR(200), 
	at BIGINT NOT NULL, 
	PRIMARY KEY (fleet, pool, version)
);
INSERT INTO "target_moves" VALUES('aws/dev/us-east-1','chat',1,1,'settings','first value',NULL,1795154400000000);
INSERT INTO "target_moves" VALUES('aws/dev/us-east-1','chat',2,2,'scale','load',NULL,1795158000000000);
CREATE TABLE targets (
	fleet VARCHAR(128) NOT NULL, 
	pool VARCHAR(64) NOT NULL, 
	value INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	PRIMARY KEY (fleet, pool)
);
INSERT INTO "targets" VALUES('aws/dev/us-east-1','chat',2,2);
CREATE TABLE team_readings (
	fleet VARCHAR(128) NOT NULL, 
	router VARCHAR(64) NOT NULL, 
	team VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	pool VARCHAR(64) NOT NULL, 
	at BIGINT NOT NULL, 
	replica_ms BIGINT, 
	tokens_in BIGINT, 
	tokens_out BIGINT, 
	unmetered BIGINT, 
	PRIMARY KEY (fleet, router, team, model, pool, at)
)
 WITHOUT ROWID

;
INSERT INTO "team_readings" VALUES('aws/dev/us-east-1','r-1','','chat','chat',1795154400000000,0,0,NULL,NULL);
INSERT INTO "team_readings" VALUES('aws/dev/us-east-1','r-1','','chat','chat',1795158000000000,1000,10,NULL,NULL);
INSERT INTO "team_readings" VALUES('aws/dev/us-east-1','r-1','','chat','chat',1795161600000000,2000,20,NULL,NULL);
INSERT INTO "team_readings" VALUES('aws/dev/us-east-1','r-1','search','chat','chat',1795154400000000,0,0,NULL,NULL);
INSERT INTO "team_readings" VALUES('aws/dev/us-east-1','r-1','search','chat','chat',1795158000000000,1000,10,NULL,NULL);
INSERT INTO "team_readings" VALUES('aws/dev/us-east-1','r-1','search','chat','chat',1795161600000000,2000,20,NULL,NULL);
CREATE TABLE token_hours (
	environment VARCHAR(128) NOT NULL, 
	instance_id VARCHAR(128) NOT NULL, 
	engine VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	hour BIGINT NOT NULL, 
	first_at BIGINT NOT NULL, 
	first_created_at BIGINT, 
	last_at BIGINT NOT NULL, 
	last_created_at BIGINT, 
	resets INTEGER NOT NULL, 
	late INTEGER NOT NULL, 
	first_prompt BIGINT, 
	first_cached BIGINT, 
	first_generation BIGINT, 
	first_prefill_ms BIGINT, 
	first_decode_ms BIGINT, 
	last_prompt BIGINT, 
	last_cached BIGINT, 
	last_generation BIGINT, 
	last_prefill_ms BIGINT, 
	last_decode_ms BIGINT, 
	inner_prompt BIGINT, 
	inner_cached BIGINT, 
	inner_generation BIGINT, 
	inner_prefill_ms BIGINT, 
	inner_decode_ms BIGINT, 
	PRIMARY KEY (environment, instance_id, engine, model, hour)
)
 WITHOUT ROWID

;
INSERT INTO "token_hours" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795154400000000,1795156800000000,1795156800000000,1795157700000000,1795156800000000,0,0,0,0,0,NULL,NULL,15000,1500,3750,NULL,NULL,15000,1500,3750,NULL,NULL);
INSERT INTO "token_hours" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795158000000000,1795158000000000,1795156800000000,1795161300000000,1795156800000000,0,0,20000,2000,5000,NULL,NULL,75000,7500,18750,NULL,NULL,55000,5500,13750,NULL,NULL);
INSERT INTO "token_hours" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795161600000000,1795161600000000,1795156800000000,1795164900000000,1795156800000000,0,0,80000,8000,20000,NULL,NULL,135000,13500,33750,NULL,NULL,55000,5500,13750,NULL,NULL);
INSERT INTO "token_hours" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795165200000000,1795165200000000,1795156800000000,1795168500000000,1795156800000000,0,0,140000,14000,35000,NULL,NULL,195000,19500,48750,NULL,NULL,55000,5500,13750,NULL,NULL);
INSERT INTO "token_hours" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795168800000000,1795168800000000,1795156800000000,1795172100000000,1795156800000000,0,0,200000,20000,50000,NULL,NULL,255000,25500,63750,NULL,NULL,55000,5500,13750,NULL,NULL);
INSERT INTO "token_hours" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795172400000000,1795172400000000,1795156800000000,1795175700000000,1795156800000000,0,0,260000,26000,65000,NULL,NULL,315000,31500,78750,NULL,NULL,55000,5500,13750,NULL,NULL);
CREATE TABLE token_readings (
	environment VARCHAR(128) NOT NULL, 
	instance_id VARCHAR(128) NOT NULL, 
	engine VARCHAR(64) NOT NULL, 
	model VARCHAR(256) NOT NULL, 
	at BIGINT NOT NULL, 
	created_at BIGINT, 
	prompt BIGINT, 
	cached BIGINT, 
	generation BIGINT, 
	prefill_ms BIGINT, 
	decode_ms BIGINT, 
	PRIMARY KEY (environment, instance_id, engine, model, at)
)
 WITHOUT ROWID

;
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795156800000000,1795156800000000,0,0,0,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795157100000000,1795156800000000,5000,500,1250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795157400000000,1795156800000000,10000,1000,2500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795157700000000,1795156800000000,15000,1500,3750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795158000000000,1795156800000000,20000,2000,5000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795158300000000,1795156800000000,25000,2500,6250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795158600000000,1795156800000000,30000,3000,7500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795158900000000,1795156800000000,35000,3500,8750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795159200000000,1795156800000000,40000,4000,10000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795159500000000,1795156800000000,45000,4500,11250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795159800000000,1795156800000000,50000,5000,12500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795160100000000,1795156800000000,55000,5500,13750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795160400000000,1795156800000000,60000,6000,15000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795160700000000,1795156800000000,65000,6500,16250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795161000000000,1795156800000000,70000,7000,17500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795161300000000,1795156800000000,75000,7500,18750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795161600000000,1795156800000000,80000,8000,20000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795161900000000,1795156800000000,85000,8500,21250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795162200000000,1795156800000000,90000,9000,22500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795162500000000,1795156800000000,95000,9500,23750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795162800000000,1795156800000000,100000,10000,25000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795163100000000,1795156800000000,105000,10500,26250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795163400000000,1795156800000000,110000,11000,27500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795163700000000,1795156800000000,115000,11500,28750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795164000000000,1795156800000000,120000,12000,30000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795164300000000,1795156800000000,125000,12500,31250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795164600000000,1795156800000000,130000,13000,32500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795164900000000,1795156800000000,135000,13500,33750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795165200000000,1795156800000000,140000,14000,35000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795165500000000,1795156800000000,145000,14500,36250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795165800000000,1795156800000000,150000,15000,37500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795166100000000,1795156800000000,155000,15500,38750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795166400000000,1795156800000000,160000,16000,40000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795166700000000,1795156800000000,165000,16500,41250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795167000000000,1795156800000000,170000,17000,42500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795167300000000,1795156800000000,175000,17500,43750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795167600000000,1795156800000000,180000,18000,45000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795167900000000,1795156800000000,185000,18500,46250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795168200000000,1795156800000000,190000,19000,47500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795168500000000,1795156800000000,195000,19500,48750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795168800000000,1795156800000000,200000,20000,50000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795169100000000,1795156800000000,205000,20500,51250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795169400000000,1795156800000000,210000,21000,52500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795169700000000,1795156800000000,215000,21500,53750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795170000000000,1795156800000000,220000,22000,55000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795170300000000,1795156800000000,225000,22500,56250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795170600000000,1795156800000000,230000,23000,57500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795170900000000,1795156800000000,235000,23500,58750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795171200000000,1795156800000000,240000,24000,60000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795171500000000,1795156800000000,245000,24500,61250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795171800000000,1795156800000000,250000,25000,62500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795172100000000,1795156800000000,255000,25500,63750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795172400000000,1795156800000000,260000,26000,65000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795172700000000,1795156800000000,265000,26500,66250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795173000000000,1795156800000000,270000,27000,67500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795173300000000,1795156800000000,275000,27500,68750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795173600000000,1795156800000000,280000,28000,70000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795173900000000,1795156800000000,285000,28500,71250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795174200000000,1795156800000000,290000,29000,72500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795174500000000,1795156800000000,295000,29500,73750,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795174800000000,1795156800000000,300000,30000,75000,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795175100000000,1795156800000000,305000,30500,76250,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795175400000000,1795156800000000,310000,31000,77500,NULL,NULL);
INSERT INTO "token_readings" VALUES('aws/dev/us-east-1','i-fallback','0','chat',1795175700000000,1795156800000000,315000,31500,78750,NULL,NULL);
CREATE TABLE told_hours (
	fleet VARCHAR(128) NOT NULL, 
	hour BIGINT NOT NULL, 
	PRIMARY KEY (fleet, hour)
);
INSERT INTO "told_hours" VALUES('aws/dev/us-east-1',1795172400000000);
CREATE INDEX runs_last_seen ON runs (environment, last_seen_at);
CREATE INDEX token_readings_at ON token_readings (environment, at);
CREATE INDEX decisions_resource ON decisions (fleet, resource, id);
CREATE INDEX outcomes_at ON outcomes (fleet, watchdog, at);
CREATE INDEX outcomes_resource ON outcomes (fleet, resource, id);
CREATE UNIQUE INDEX target_moves_because ON target_moves (fleet, pool, because);
CREATE INDEX brakes_open ON brakes (fleet, released_at);
CREATE INDEX outbox_open ON outbox (state, channel, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('outcomes',2);
INSERT INTO "sqlite_sequence" VALUES('decisions',3);
INSERT INTO "sqlite_sequence" VALUES('brakes',2);
INSERT INTO "sqlite_sequence" VALUES('outbox',2);
COMMIT;
