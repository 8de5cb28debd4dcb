{{/* A pool with its defaults and what is derived: {root, name}. Read it with fromYaml. */}}
{{- define "callboard.pool" -}}
{{- $pool := deepCopy (.root.Values.poolDefaults | default dict) -}}
{{- $scaling := $pool.autoscaling | default dict | deepCopy -}}
{{- range $key, $value := (get .root.Values.pools .name) | default dict -}}
{{- $_ := set $pool $key $value -}}
{{- end -}}
{{- range $key, $value := $pool.autoscaling -}}
{{- $_ := set $scaling $key $value -}}
{{- end -}}
{{- if kindIs "invalid" $pool.autoscaling -}}
{{- $scaling = dict -}}
{{- end -}}
{{- $queues := $pool.queues | default (list .name) -}}
{{- $limit := 0 -}}{{- $threads := 0 -}}{{- $needsDatabase := false -}}
{{- range $queue := $queues -}}
{{- $row := get ($.root.Values.queues | default dict) $queue -}}
{{- if not $row -}}
{{- fail (printf "pools.%s: %q is no queue of values `queues`; give the pool `queues`, or add the row" $.name $queue) -}}
{{- end -}}
{{- $limit = max $limit (int64 $row.timeLimitSeconds) -}}
{{- $threads = add $threads (int64 $row.concurrency) -}}
{{- $needsDatabase = or $needsDatabase ($row.needsDatabase | default false) -}}
{{- end -}}
{{- $limit = int64 ($pool.timeLimitSeconds | default $limit) -}}
{{- $grace := int64 ($pool.terminationGracePeriodSeconds | default (add $limit 30)) -}}
{{- if lt $grace (add $limit 30) -}}
{{- fail (printf "pools.%s: terminationGracePeriodSeconds is %d and must be at least %d, 30 s above its time limit of %d s: a running job would be cut" .name $grace (add $limit 30) $limit) -}}
{{- end -}}
{{- $threads = int64 ($pool.threads | default $threads) -}}
{{- $processes := int64 ($pool.processes | default 1) -}}
{{- $_ := set $pool "queues" $queues -}}
{{- $_ := set $pool "needsDatabase" $needsDatabase -}}
{{- $_ := set $pool "terminationGracePeriodSeconds" $grace -}}
{{- $_ := set $pool "threads" $threads -}}
{{- $_ := set $pool "processes" $processes -}}
{{- $_ := set $pool "replicas" (kindIs "invalid" $pool.replicas | ternary 1 $pool.replicas) -}}
{{- $_ := set $scaling "type" ($scaling.type | default "none") -}}
{{- $_ := set $scaling "minReplicas" (kindIs "invalid" $scaling.minReplicas | ternary 1 $scaling.minReplicas) -}}
{{- $_ := set $scaling "maxReplicas" ($scaling.maxReplicas | default 10) -}}
{{- $_ := set $scaling "jobsPerPod" ($scaling.jobsPerPod | default (mul $processes $threads)) -}}
{{- $_ := set $scaling "targetAgeSeconds" ($scaling.targetAgeSeconds | default 60) -}}
{{- $_ := set $scaling "maxBoost" ($scaling.maxBoost | default 4) -}}
{{- $_ := set $scaling "cooldownSeconds" ($scaling.cooldownSeconds | default 300) -}}
{{- $_ := set $scaling "scaleDownSeconds" (kindIs "invalid" $scaling.scaleDownSeconds | ternary 300 $scaling.scaleDownSeconds) -}}
{{- $_ := set $scaling "pollingSeconds" ($scaling.pollingSeconds | default 15) -}}
{{- $_ := set $pool "autoscaling" $scaling -}}
{{- toYaml $pool -}}
{{- end -}}

{{/*
The demand of a pool in jobs: {root, pool}. What waits or runs, times how late the oldest one is (1 to maxBoost). Pods wanted
are demand / jobsPerPod, rounded up. Running jobs count: a pool that works is never taken to zero. Each API process tells
the same, hence the maximum. While Redis can't be asked there is no sample, and no decision.
*/}}
{{- define "callboard.demand" -}}
{{- $own := printf "namespace=\"%s\",service=\"%s-api\"" .root.Release.Namespace (include "callboard.fullname" .root) -}}
{{- $of := printf "{%s,queue=~\"%s\"}" (.root.Values.prometheus.selector | default $own) (join "|" .pool.queues) -}}
sum(max by (queue) (callboard_queue_depth{{ $of }}) + max by (queue) (callboard_queue_running{{ $of }})) * clamp(max(callboard_queue_oldest_age_seconds{{ $of }}) / {{ include "callboard.text" .pool.autoscaling.targetAgeSeconds }}, 1, {{ include "callboard.text" .pool.autoscaling.maxBoost }})
{{- end -}}
