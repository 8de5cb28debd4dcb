{{/* What the schema can't say, since it compares values with one another. Rendered once, by configmap.yaml. */}}
{{- define "callboard.checks" -}}
{{- range $key := list "redis" "database" -}}
{{- $values := get $.Values $key -}}
{{- $ways := compact (list $values.url $values.existingSecret ($values.bundled.enabled | ternary "bundled" "")) -}}
{{- if ne (len $ways) 1 -}}
{{- fail (printf "%s: set exactly one of %s.existingSecret, %s.url, and %s.bundled.enabled (for trial only)" $key $key $key $key) -}}
{{- end -}}
{{- end -}}
{{- with .Values.smtp -}}
{{- if and (not .existingSecret) (ne (empty .username) (empty .password)) -}}
{{- fail "smtp: username and password go together" -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.migrations.mode "hook") .Values.database.bundled.enabled -}}
{{- fail "migrations.mode: a hook runs before the bundled PostgreSQL is there; use auto or init" -}}
{{- end -}}
{{- with .Values.metrics.serviceMonitor -}}
{{- if and .enabled (not .existingSecret) (not (has "metrics" ($.Values.api.public | default list))) -}}
{{- fail "metrics.serviceMonitor: the API asks for a key; name its Secret in existingSecret, or add `metrics` to api.public" -}}
{{- end -}}
{{- end -}}
{{- with .Values.networkPolicy -}}
{{- if and .enabled .apiFrom (not .metricsFrom) $.Values.metrics.serviceMonitor.enabled -}}
{{- fail "networkPolicy.apiFrom shuts Prometheus out of the API, and autoscalers stand still: name it in metricsFrom" -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := .Values.pools -}}
{{- $scaling := (include "callboard.pool" (dict "root" $ "name" $name) | fromYaml).autoscaling -}}
{{- if lt (int64 $scaling.maxReplicas) (int64 $scaling.minReplicas) -}}
{{- fail (printf "pools.%s.autoscaling: maxReplicas is below minReplicas" $name) -}}
{{- end -}}
{{- if and (eq $scaling.type "keda") (not $.Values.prometheus.url) -}}
{{- fail (printf "pools.%s.autoscaling: keda asks Prometheus; set prometheus.url" $name) -}}
{{- end -}}
{{- if eq $scaling.type "hpa" -}}
{{- if eq (int64 $scaling.minReplicas) 0 -}}
{{- fail (printf "pools.%s.autoscaling: hpa can't go to zero; use keda, or minReplicas of 1" $name) -}}
{{- end -}}
{{- if not $.Values.metrics.prometheusRule.enabled -}}
{{- fail (printf "pools.%s.autoscaling: hpa reads the demand that metrics.prometheusRule records; enable it" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "callboard.migrationMode" -}}
{{- if eq .Values.migrations.mode "auto" -}}
{{- .Values.database.bundled.enabled | ternary "init" "hook" -}}
{{- else -}}
{{- .Values.migrations.mode -}}
{{- end -}}
{{- end -}}
